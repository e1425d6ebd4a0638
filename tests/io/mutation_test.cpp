// Damaged safetensors files, the same ones each time: the reader always answers, and what it accepts holds together.
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "io/bytes.h"
#include "io/safetensors.h"

namespace kda::io {
namespace {

TEST(SafetensorsMutation, TensorsOfAcceptedFilesLieWithinTheFile) {
  const std::string header =
      R"({"__metadata__":{"a":"b","kda.replay":"1"},"x":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
      R"("y":{"dtype":"BF16","shape":[4],"data_offsets":[24,32]},"z":{"dtype":"U8","shape":[0],"data_offsets":[32,32]}})";
  const std::string whole = testing::file_bytes(header, std::string(32, 'x'));
  const char interesting[] = "{}[]\",:0123456789-eE.\\\x00\xff u";
  std::mt19937_64 random(7);
  int accepted = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string bytes = whole;
    for (uint64_t changes = 1 + random() % 3; changes > 0; --changes) {
      const size_t at = random() % (8 + header.size());
      switch (random() % 5) {
        case 0:
          bytes[at] = static_cast<char>(random());
          break;
        case 1:
          bytes.erase(std::min(at, bytes.size() - 1), 1 + random() % 4);
          break;
        case 2:
          bytes.insert(std::min(at, bytes.size()), 1, interesting[random() % (sizeof interesting - 1)]);
          break;
        case 3:
          bytes[at] = interesting[random() % (sizeof interesting - 1)];
          break;
        default:
          if (random() % 8 == 0) bytes.resize(random() % bytes.size());
      }
      if (bytes.size() < 8 + header.size()) break;
    }
    const std::vector<char> memory(bytes.begin(), bytes.end());
    const auto span = std::as_bytes(std::span(memory));
    const auto file = SafetensorsFile::parse(span, "m");
    if (!file) {
      EXPECT_EQ(file.error().find('\n'), std::string::npos);
      continue;
    }
    ++accepted;
    for (const TensorInfo& tensor : file->tensors()) {
      ASSERT_EQ(tensor.data.size(), static_cast<size_t>(tensor.elements * size_of(tensor.type)));
      if (tensor.data.empty()) continue;
      ASSERT_GE(tensor.data.data(), span.data());
      ASSERT_LE(tensor.data.data() + tensor.data.size(), span.data() + span.size());
      ASSERT_EQ(file->find(tensor.name), &tensor);
    }
  }
  EXPECT_GT(accepted, 50);
  EXPECT_LT(accepted, 10000);
}

}  // namespace
}  // namespace kda::io
