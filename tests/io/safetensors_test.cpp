#include "io/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "io/bytes.h"

namespace kda::io {
namespace {

using ::testing::ElementsAre;
using testing::file_bytes;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::ScratchDirectory;

Result<SafetensorsFile> parse(const std::string& bytes) {
  // Exactly sized heap memory, so that a sanitizer sees any read beyond the end.
  static std::vector<std::byte> memory;
  const auto span = std::as_bytes(std::span(bytes));
  memory = std::vector<std::byte>(span.begin(), span.end());
  return SafetensorsFile::parse(memory, "file.safetensors");
}

Result<SafetensorsFile> parse(const std::string& header, const std::string& body) {
  return parse(file_bytes(header, body));
}

TEST(Safetensors, ReadsTensorsAndMetadata) {
  const auto file = parse(
      R"({"__metadata__":{"a":"b"},"y":{"dtype":"BF16","shape":[2],"data_offsets":[8,12]},)"
      R"("x":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]},"none":{"dtype":"I64","shape":[0,3],"data_offsets":[12,12]},)"
      R"("scalar":{"dtype":"U8","shape":[],"data_offsets":[12,13]}}   )",
      "abcdefghijklm");
  ASSERT_TRUE(file) << file.error();
  EXPECT_EQ(file->metadata().at("a"), "b");
  ASSERT_EQ(file->tensors().size(), 4u);
  const TensorInfo* y = file->find("y");
  ASSERT_NE(y, nullptr);
  EXPECT_EQ(y->type, TensorType::kBF16);
  EXPECT_THAT(y->shape, ElementsAre(2));
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(y->data.data()), y->data.size()), "ijkl");
  EXPECT_EQ(file->find("scalar")->elements, 1);
  EXPECT_EQ(file->find("none")->elements, 0);
  EXPECT_EQ(file->find("z"), nullptr);
}

TEST(Safetensors, RequireNamesExpectedAndFound) {
  const auto file = parse(R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", "abcdefgh");
  ASSERT_TRUE(file);
  EXPECT_TRUE(file->require("x", TensorType::kF32, {2}));
  EXPECT_EQ(file->require("x", TensorType::kBF16, {4}).error(),
            "file.safetensors: tensor 'x': expected BF16 [4], found F32 [2]");
  EXPECT_EQ(file->require("w", TensorType::kBF16, {4}).error(),
            "file.safetensors: tensor 'w': expected BF16 [4], found none");
}

struct BadHeader {
  const char* header;
  const char* body;
  const char* message;
};

class SafetensorsRefusal : public ::testing::TestWithParam<BadHeader> {};

TEST_P(SafetensorsRefusal, IsOneLineThatNamesTheFault) {
  const auto file = parse(GetParam().header, GetParam().body);
  ASSERT_FALSE(file);
  EXPECT_THAT(file.error(), HasSubstr("file.safetensors: "));
  EXPECT_THAT(file.error(), HasSubstr(GetParam().message));
  EXPECT_THAT(file.error(), Not(HasSubstr("\n")));
}

INSTANTIATE_TEST_SUITE_P(
    Headers, SafetensorsRefusal,
    ::testing::Values(
        BadHeader{"", "", "expected a header starting with '{'"}, BadHeader{" {}", "", "starting with '{'"},
        BadHeader{"{", "", "expected JSON"}, BadHeader{"{}x", "", "expected JSON"},
        BadHeader{"{}", "a", "1 bytes more"},
        BadHeader{R"({"x":1})", "", "expected an object with dtype, shape and data_offsets, found a number"},
        BadHeader{R"({"x":{}})", "", "expected the key 'dtype'"},
        BadHeader{R"({"x":{"dtype":"U8","shape":[1]}})", "a", "expected the key 'data_offsets'"},
        BadHeader{R"({"x":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}})", "a",
                  "'dtype' is given twice"},
        BadHeader{R"({"x":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"more":1}})", "a", "found 'more'"},
        BadHeader{
            R"({"x":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"x":{"dtype":"U8","shape":[0],"data_offsets":[1,1]}})",
            "a", "the key 'x' is given twice"},
        BadHeader{R"({"__metadata__":{"k":"1","k":"2"}})", "", "metadata key 'k' is given twice"},
        BadHeader{R"({"__metadata__":{"k":1}})", "", "__metadata__: strings only, found a number"},
        BadHeader{R"({"__metadata__":{"k":{"j":"1"}}})", "", "__metadata__: strings only, found an object"},
        BadHeader{R"({"x":{"dtype":"F3","shape":[1],"data_offsets":[0,1]}})", "a", "found 'F3'"},
        BadHeader{R"({"x":{"dtype":"U8","shape":[-1],"data_offsets":[0,1]}})", "a", "found a negative number"},
        BadHeader{R"({"x":{"dtype":"U8","shape":[1.0],"data_offsets":[0,1]}})", "a", "no 64-bit integer"},
        BadHeader{R"({"x":{"dtype":"U8","shape":[18446744073709551616],"data_offsets":[0,1]}})", "a",
                  "no 64-bit integer"},
        BadHeader{R"({"x":{"dtype":"U8","shape":[18446744073709551615],"data_offsets":[0,1]}})", "a", "less than 2^63"},
        BadHeader{R"({"x":{"dtype":"F32","shape":[4611686018427387905],"data_offsets":[0,4]}})", "abcd",
                  "less than 2^63"},
        BadHeader{R"({"x":{"dtype":"U8","shape":[4294967296,4294967297],"data_offsets":[0,1]}})", "a",
                  "less than 2^63"},
        BadHeader{R"({"x":{"dtype":"U8","shape":[0,4294967296,4294967296],"data_offsets":[0,0]}})", "",
                  "less than 2^63"},
        BadHeader{R"({"x":{"dtype":"U8","shape":[1],"data_offsets":[0,1,2]}})", "a", "expected 2 numbers, found more"},
        BadHeader{R"({"x":{"dtype":"U8","shape":[1],"data_offsets":[0]}})", "a", "expected 2 numbers, found 1"},
        BadHeader{R"({"x":{"dtype":"U8","shape":[1],"data_offsets":[1,0]}})", "a", "found [1, 0)"},
        BadHeader{R"({"x":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})", "a", "within the file's 1 bytes"},
        BadHeader{R"({"x":{"dtype":"U8","shape":[2],"data_offsets":[18446744073709551615,1]}})", "a",
                  "within the file's"},
        BadHeader{R"({"x":{"dtype":"F32","shape":[1],"data_offsets":[0,2]}})", "ab", "expected 4 bytes for F32 [1]"},
        BadHeader{
            R"({"x":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"y":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
            "abc", "expected its bytes to begin where the last tensor ends, at 2, found 1"},
        BadHeader{R"({"x":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})", "ab", "at 0, found 1"},
        BadHeader{R"({"x":{"dtype":"U8","shape":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1],"data_offsets":[0,1]}})", "a",
                  "at most 16 dimensions"},
        BadHeader{"{\"a\\nb\":{\"dtype\":\"\\u001b[31m\",\"shape\":[],\"data_offsets\":[0,1]}}", "a", "\\x1b[31m"}));

TEST(Safetensors, RefusesCutFiles) {
  const std::string whole =
      file_bytes(R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", std::string(8, 'a'));
  ASSERT_TRUE(parse(whole));
  for (size_t length = 0; length < whole.size(); ++length) EXPECT_FALSE(parse(whole.substr(0, length))) << length;
}

TEST(Safetensors, RefusesAHeaderLengthBeyondTheFile) {
  for (const uint64_t length : {uint64_t{3}, uint64_t{1} << 32, ~uint64_t{0}, ~uint64_t{0} - 7}) {
    std::string bytes = file_bytes("{}", "");
    std::memcpy(bytes.data(), &length, 8);
    EXPECT_THAT(parse(bytes).error(), HasSubstr("expected a header of at most 2 bytes")) << length;
  }
}

TEST(Safetensors, DeepNestingIsRefusedWithoutRecursion) {
  const std::string deep(1000000, '[');
  EXPECT_FALSE(parse("{\"x\":" + deep, ""));
  EXPECT_FALSE(parse("{\"x\":{\"dtype\":\"U8\",\"shape\":" + deep, ""));
}

TEST(Safetensors, OpenRefusesWhatIsNoRegularFile) {
  ScratchDirectory scratch;
  EXPECT_THAT(SafetensorsFile::open(scratch.file("none")).error(), HasSubstr("cannot open"));
  EXPECT_THAT(SafetensorsFile::open(scratch.path()).error(), HasSubstr("expected a regular file, found a directory"));
  EXPECT_THAT(SafetensorsFile::open(scratch.write("empty", "")).error(), HasSubstr("found 0"));
}

TEST(SafetensorsWriter, RoundTripsAndLeavesOneFile) {
  ScratchDirectory scratch;
  const std::vector<uint8_t> flags = {1, 0, 1};
  const std::vector<float> values = {1.5f, -2.0f};
  const std::string path = scratch.file("out.safetensors");
  const auto done = write_safetensors(path,
                                      {{"flags", TensorType::kU8, {3}, std::as_bytes(std::span(flags))},
                                       {"val\"ues", TensorType::kF32, {1, 2}, std::as_bytes(std::span(values))},
                                       {"none", TensorType::kF32, {0, 2}, {}}},
                                      {{"key", "text"}});
  ASSERT_TRUE(done) << done.error();
  const auto file = SafetensorsFile::open(path);
  ASSERT_TRUE(file) << file.error();
  EXPECT_EQ(file->metadata().at("key"), "text");
  const auto tensor = file->require("val\"ues", TensorType::kF32, {1, 2});
  ASSERT_TRUE(tensor) << tensor.error();
  EXPECT_TRUE((*tensor)->aligned());
  EXPECT_EQ(std::memcmp((*tensor)->data.data(), values.data(), 8), 0);
  EXPECT_TRUE(file->require("flags", TensorType::kU8, {3}));
  EXPECT_TRUE(file->require("none", TensorType::kF32, {0, 2}));
  const auto entries = std::distance(std::filesystem::directory_iterator(scratch.path()), {});
  EXPECT_EQ(entries, 1);
}

TEST(SafetensorsWriter, ARefusalWritesNothing) {
  ScratchDirectory scratch;
  const std::vector<uint8_t> flags = {1, 0, 1};
  const auto data = std::as_bytes(std::span(flags));
  const std::string path = scratch.file("out.safetensors");
  EXPECT_FALSE(write_safetensors(path, {{"x", TensorType::kU8, {2}, data}}, {}));
  EXPECT_FALSE(write_safetensors(path, {{"x", TensorType::kU8, {3}, data}, {"x", TensorType::kU8, {3}, data}}, {}));
  EXPECT_FALSE(write_safetensors(scratch.file("no/such/dir"), {{"x", TensorType::kU8, {3}, data}}, {}));
  EXPECT_FALSE(write_file_atomically(path, [](const PieceSink& sink) {
    const std::byte piece[4] = {};
    return sink(piece) && false;
  }));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(scratch.path()), {}), 0);
}

TEST(Checkpoint, ReadsOneFileOrAnIndex) {
  ScratchDirectory scratch;
  const std::string x = file_bytes(R"({"x":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", "a");
  const std::string y = file_bytes(R"({"y":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})", "bc");
  EXPECT_THAT(Checkpoint::open(scratch.path()).error(), HasSubstr("found neither"));
  scratch.write("model.safetensors", x);
  const auto single = Checkpoint::open(scratch.path());
  ASSERT_TRUE(single) << single.error();
  EXPECT_THAT(single->names(), ElementsAre("x"));

  scratch.write("model-1.safetensors", y);
  scratch.write("model.safetensors.index.json",
                R"({"metadata":{"total_size":3},"weight_map":{"x":"model.safetensors","y":"model-1.safetensors"}})");
  const auto sharded = Checkpoint::open(scratch.path());
  ASSERT_TRUE(sharded) << sharded.error();
  EXPECT_THAT(sharded->names(), ElementsAre("x", "y"));
  EXPECT_TRUE(sharded->require("y", TensorType::kU8, {2}));
  EXPECT_THAT(sharded->require("z").error(), HasSubstr("tensor 'z': expected, found none"));
}

TEST(Checkpoint, RefusesBadIndexes) {
  ScratchDirectory scratch;
  scratch.write("model.safetensors", file_bytes("{}", ""));
  const std::pair<const char*, const char*> cases[] = {
      {"{", "expected a JSON object"},
      {"[]", "expected a JSON object"},
      {"{}", "expected the key 'weight_map'"},
      {R"({"weight_map":3})", "expected the key 'weight_map'"},
      {R"({"weight_map":{"x":3}})", "tensor 'x': expected the name of a file beside the index, found 3"},
      {R"({"weight_map":{"x":"../model.safetensors"}})", "beside the index"},
      {R"({"weight_map":{"x":".."}})", "beside the index"},
      {R"({"weight_map":{"x":"none.safetensors"}})", "cannot open"},
      {R"({"weight_map":{"x":"model.safetensors"}})", "tensor 'x': expected, found none (named by"},
      {R"({"weight_map":{"x":"model.safetensors","x":"model.safetensors"}})", "given twice"},
  };
  for (const auto& [json, message] : cases) {
    scratch.write("model.safetensors.index.json", json);
    EXPECT_THAT(Checkpoint::open(scratch.path()).error(), HasSubstr(message)) << json;
  }
  scratch.write("model.safetensors.index.json", std::string(1000000, '['));
  EXPECT_FALSE(Checkpoint::open(scratch.path()));
}

}  // namespace
}  // namespace kda::io
