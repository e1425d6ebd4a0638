#include "model/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "demo.h"
#include "io/file.h"
#include "model/split.h"

namespace kda::model {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

Tokenizer demo_tokenizer() {
  auto config = Config::read(demo_directory() + "/config.json");
  EXPECT_TRUE(config.ok()) << config.error();
  auto tokenizer = Tokenizer::load(demo_directory(), *config);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.error();
  return std::move(*tokenizer);
}

Config byte_config(int64_t vocab_size) {
  Config config;
  config.vocab_size = vocab_size;
  return config;
}

std::string base64(std::string_view bytes) {
  static constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t group = 0;
    for (size_t j = 0; j < 3; ++j) {
      group = group << 8 | (i + j < bytes.size() ? static_cast<unsigned char>(bytes[i + j]) : 0u);
    }
    for (size_t j = 0; j < 4; ++j) text += i + j > bytes.size() ? '=' : kDigits[group >> (18 - 6 * j) & 63];
  }
  return text;
}

std::string byte_ranks() {
  std::string text;
  for (int b = 0; b < 256; ++b) text += base64(std::string(1, static_cast<char>(b))) + " " + std::to_string(b) + "\n";
  return text;
}

// Thousands of fuzzed texts against tiktoken's ids; tools/make_tokenizer_vectors.py writes them.
TEST(Tokenizer, EqualsTiktoken) {
  auto file = io::read_file(std::string(KDA_SOURCE_DIR) + "/tests/model/tokenizer_vectors.json");
  ASSERT_TRUE(file.ok()) << file.error();
  const auto vectors = nlohmann::json::parse(*file)["vectors"];
  ASSERT_GT(vectors.size(), 3000u);
  const Tokenizer tokenizer = demo_tokenizer();
  int different = 0;
  for (const auto& vector : vectors) {
    const auto text = vector[0].get<std::string>();
    const auto ids = vector[1].get<std::vector<int32_t>>();
    if (tokenizer.encode(text) != ids && ++different < 5) {
      ADD_FAILURE() << "text " << vector[0].dump() << "\nexpected " << vector[1].dump() << "\nfound "
                    << nlohmann::json(tokenizer.encode(text)).dump();
    }
    EXPECT_EQ(tokenizer.decode(ids), text);
  }
  EXPECT_EQ(different, 0);
}

TEST(Tokenizer, AgreesWithTheGoldenPrompts) {
  auto file = io::read_file(demo_directory() + "/golden.json");
  ASSERT_TRUE(file.ok()) << file.error();
  const Tokenizer tokenizer = demo_tokenizer();
  const nlohmann::json golden = nlohmann::json::parse(*file);
  ASSERT_EQ(golden.at("prompts").size(), 3u);
  for (const auto& prompt : golden.at("prompts")) {
    const auto text = prompt.get<std::string>();
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
  }
  EXPECT_EQ(tokenizer.bos(), 3840);
  EXPECT_EQ(tokenizer.eos(), 3841);
  EXPECT_EQ(tokenizer.vocab_size(), 4096);
}

TEST(Tokenizer, SplitsAsThePatternSays) {
  const auto pieces = [](std::string_view text) {
    std::vector<std::string> out;
    for (size_t at = 0; at < text.size();) {
      const size_t length = piece_length(text, at);
      out.emplace_back(text.substr(at, length));
      at += length;
    }
    return out;
  };
  EXPECT_THAT(pieces("Hello world"), ElementsAre("Hello", " world"));
  EXPECT_THAT(pieces("you'LL see"), ElementsAre("you'LL", " see"));
  EXPECT_THAT(pieces("it'\xC5\xBF"), ElementsAre("it'\xC5\xBF"));  // a long s folds to s
  EXPECT_THAT(pieces("HTTPServer"), ElementsAre("HTTPServer"));    // upper* lower+
  EXPECT_THAT(pieces("camelCase"), ElementsAre("camel", "Case"));
  EXPECT_THAT(pieces("1234567"), ElementsAre("123", "456", "7"));
  EXPECT_THAT(pieces("a  b"), ElementsAre("a", " ", " b"));
  EXPECT_THAT(pieces("a \n\n b  "), ElementsAre("a", " \n\n", " b", "  "));
  EXPECT_THAT(pieces("x=(1)\n\n"), ElementsAre("x", "=(", "1", ")\n\n"));
  EXPECT_THAT(pieces("你好abc"), ElementsAre("你好", "abc"));
  EXPECT_THAT(pieces("A\xCC\x81"), ElementsAre("A\xCC\x81"));  // a mark is in both letter classes
}

TEST(Tokenizer, MergesLongPiecesQuickly) {
  const Tokenizer tokenizer = demo_tokenizer();
  const std::string text(200000, 'a');
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
}

TEST(Tokenizer, SpecialTokensOnlyWhenAskedFor) {
  const Tokenizer tokenizer = demo_tokenizer();
  const std::string text = "a[EOS]b";
  const auto plain = tokenizer.encode(text);
  EXPECT_THAT(plain, testing::Not(testing::Contains(3841)));
  const auto special = tokenizer.encode(text, /*special=*/true);
  EXPECT_EQ(special.size(), 3u);
  EXPECT_EQ(special[1], 3841);
  EXPECT_EQ(tokenizer.bytes(3841), "[EOS]");
  EXPECT_EQ(tokenizer.decode(special), "ab");
  EXPECT_EQ(tokenizer.bytes(-1), "");
  EXPECT_EQ(tokenizer.bytes(4096), "");
}

TEST(Tokenizer, MalformedUtf8IsReplaced) {
  const Tokenizer tokenizer = demo_tokenizer();
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("a\xFF\xE4\xBD"
                                              "b")),
            "a\xEF\xBF\xBD\xEF\xBF\xBD"
            "b");
}

TEST(Tokenizer, RefusesMalformedFiles) {
  const auto error = [](const std::string& text, int64_t vocab_size = 512) {
    auto result = Tokenizer::parse(text, "FILE", byte_config(vocab_size));
    return result.ok() ? std::string() : result.error();
  };
  const std::string good = byte_ranks();
  EXPECT_EQ(error(good), "");
  EXPECT_THAT(error(good + "YWI= 255\n"), HasSubstr("line 257: expected rank 256, found 255"));
  EXPECT_THAT(error(good + "YWI 256\n"), HasSubstr("line 257: expected a base64 token"));
  EXPECT_THAT(error(good + "YWI=\n"), HasSubstr("line 257: expected a base64 token"));
  EXPECT_THAT(error(good + "YWI= x\n"), HasSubstr("line 257"));
  EXPECT_THAT(error(good + "YWI= -1\n"), HasSubstr("line 257"));
  EXPECT_THAT(error(good + "YQ== 256\n"), HasSubstr("earlier line"));
  EXPECT_THAT(error(good, 100), HasSubstr("vocab_size 100"));
  EXPECT_THAT(error(good.substr(0, good.size() - 9)), HasSubstr("0xFF"));
  EXPECT_THAT(error(""), HasSubstr("0x00"));
}

TEST(Utf8Stream, HoldsBackWhatIsIncomplete) {
  Utf8Stream stream;
  EXPECT_EQ(stream.push("a\xE4"), "a");
  EXPECT_EQ(stream.push("\xBD"), "");
  EXPECT_EQ(stream.push("\xA0"
                        "b"),
            "你b");
  EXPECT_EQ(stream.push("\xF0\x9F\x98"), "");
  EXPECT_EQ(stream.finish(), "\xEF\xBF\xBD");
  EXPECT_EQ(stream.finish(), "");
  EXPECT_EQ(stream.push("\xF0\x9F"
                        "x"),
            "\xEF\xBF\xBD"
            "x");
  EXPECT_EQ(stream.push("\xED\xA0\x80"), "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD");  // a surrogate
  EXPECT_EQ(stream.push("\xC0\xAF"), "\xEF\xBF\xBD\xEF\xBF\xBD");                  // overlong
  EXPECT_EQ(stream.push("\xF4\x90"), "\xEF\xBF\xBD\xEF\xBF\xBD");                  // beyond U+10FFFF
  EXPECT_EQ(stream.push("\x80"), "\xEF\xBF\xBD");
}

}  // namespace
}  // namespace kda::model
