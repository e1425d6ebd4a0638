// kda explain as a program: what counts as the text, wrong use, JSON.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "cli/program.h"

namespace kda::cli::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;
using Json = nlohmann::json;

ProgramResult explain(std::vector<std::string> words) {
  words.insert(words.begin(), "explain");
  return run_kda(words);
}

TEST(ExplainProgram, TextsMayBeginWithDashes) {
  const char* message = "--linear-attn-decode-backend flashkda is not supported";
  const std::vector<std::string> ways[] = {
      {message},
      {"--", message},
      {"--linear-attn-decode-backend", "flashkda", "is", "not", "supported"},
      {"--", "--linear-attn-decode-backend", "flashkda", "is", "not", "supported"}};
  for (const auto& words : ways) {
    const ProgramResult result = explain(words);
    EXPECT_EQ(result.exit_code, 0) << words[0] << ": " << result.err;
    EXPECT_THAT(result.out, StartsWith("SGL-FLASHKDA-DECODE "));
  }
  const ProgramResult equals = explain({"--kda-prefill-backend=flashkda", "is", "only", "available", "on", "CUDA."});
  EXPECT_THAT(equals.out, StartsWith("VLLM-FLASHKDA-CUDA "));
  // The own options are still options, wherever they stand.
  for (const std::vector<std::string>& words : {std::vector<std::string>{"--json", message}, {message, "--json"}}) {
    const ProgramResult result = explain(words);
    EXPECT_EQ(Json::parse(result.out, nullptr, false).value("id", ""), "SGL-FLASHKDA-DECODE") << result.err;
  }
}

TEST(ExplainProgram, WrongUseIsOneLine) {
  const auto wrong = [](const std::vector<std::string>& words, const char* text) {
    const ProgramResult result = explain(words);
    EXPECT_EQ(result.exit_code, 2) << result.err;
    EXPECT_EQ(result.out, "");
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
    EXPECT_THAT(result.err, HasSubstr(text));
  };
  wrong({}, "no code and no message given");
  wrong({""}, "no code and no message given");
  wrong({"--"}, "no code and no message given");
  wrong({"-"}, "no code and no message given");  // nothing on standard input
  wrong({"--html", ""}, "--html: expected a value, found none");
  wrong({"--html="}, "--html=: expected a value, found none");
  wrong({"--html"}, "--html");
  wrong({"--data", ""}, "--data: expected a value, found none");
  wrong({"KDA-1001", "--data"}, "--data");
  wrong({"--lst"}, "unknown option '--lst'");
  wrong({"--jsno", "KDA-1001"}, "unknown option '--jsno'");
  wrong({"--lst"}, "kda explain - <");
  wrong({"--list", "KDA-1001"}, "expected one of a text, --list and --html");
  wrong({"--list", "--html", "pages"}, "expected one of a text, --list and --html");
}

TEST(ExplainProgram, SharedTextsAreNamed) {
  const ProgramResult table = explain({"argument --port: invalid choice: 'x' (choose from '1')"});
  EXPECT_EQ(table.exit_code, 0);
  EXPECT_THAT(table.out, HasSubstr("This text also fits:"));
  const ProgramResult json = explain({"--json", "argument --port: invalid choice: 'x' (choose from '1')"});
  EXPECT_EQ(Json::parse(json.out, nullptr, false)["shares_text_with"].size(), 1u) << json.out;
  const ProgramResult none = explain({"CUDA out of memory"});
  EXPECT_EQ(none.exit_code, 1);
  EXPECT_EQ(none.out, "");
  EXPECT_THAT(none.err, HasSubstr("no record of a KDA error matches this text"));
}

}  // namespace
}  // namespace kda::cli::testing
