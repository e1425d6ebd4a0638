// Splitting and parsing of launch commands, and the fuzz target over random and damaged ones.
#include "doctor/command_line.h"

#include <gtest/gtest.h>

#include <random>

#include "fuzz/doctor_command.cpp"

namespace kda::doctor {
namespace {

using Words = std::vector<std::string>;

TEST(Split, AsAShellDoes) {
  EXPECT_EQ(split_words("a  b\tc\n d"), (Words{"a", "b", "c", "d"}));
  EXPECT_EQ(split_words("A='x y' \"b \\\" c\" d\\ e ''"), (Words{"A=x y", "b \" c", "d e", ""}));
  EXPECT_EQ(split_words("sglang serve \\\n  --tp 8 \\\r\n  --port 1 # a comment\n--x"),
            (Words{"sglang", "serve", "--tp", "8", "--port", "1", "--x"}));
  EXPECT_EQ(split_words("--speculative-config '{\"method\": \"ngram\"}'"),
            (Words{"--speculative-config", "{\"method\": \"ngram\"}"}));
  EXPECT_EQ(split_words("a#b 'c'd\"e\""), (Words{"a#b", "cde"}));
  EXPECT_THROW(split_words("'open"), UsageError);
  EXPECT_THROW(split_words("\"open"), UsageError);
  EXPECT_THROW(split_words(std::string(2 << 20, 'a')), UsageError);
  EXPECT_EQ(split_words(""), Words{});
  const Words hard = {"it's", "", "a b", "$x", "\\", "\"", "--k={\"a\": 1}", "é"};
  EXPECT_EQ(split_words(join_words(hard)), hard);
}

TEST(Launcher, PrefixesWrappersAndPaths) {
  const std::vector<Words> launchers = {{"python*", "-m", "engine.serve"}, {"engine", "serve"}};
  const auto find = [&](const std::string& text) {
    ParsedCommand command;
    const int which = find_launcher(split_words(text), launchers, command);
    return std::pair(which, command);
  };
  EXPECT_EQ(find("python -m engine.serve --x").first, 0);
  EXPECT_EQ(find("/usr/bin/python3.12 -m engine.serve").first, 0);
  EXPECT_EQ(find("numactl -N 0 A=1 B='2 3' nohup engine serve m &").first, 1);
  EXPECT_EQ(find("python-config -m engine.serve").first, -1);
  EXPECT_EQ(find("pythonic -m engine.serve").first, -1);
  EXPECT_EQ(find("engine").first, -1);
  const ParsedCommand command = find("A=1 x 2=3 B='2 3' engine serve C=4").second;
  ASSERT_EQ(command.environment.size(), 2u);
  EXPECT_EQ(command.environment[1], (std::pair<std::string, std::string>{"B", "2 3"}));
  EXPECT_EQ(command.words[command.options_begin], "C=4");
}

TEST(Options, ValuesFlagsBeginningsAndUnknownOnes) {
  std::vector<OptionSpec> specs(3);
  specs[0] = {{"--backend", "-b"}, "backend", OptionSpec::Kind::kText, nullptr, {}};
  specs[1] = {{"--fast"}, "fast", OptionSpec::Kind::kFlag, false, {}};
  specs[2] = {{"--config"}, "config", OptionSpec::Kind::kJson, nullptr, {}};
  const OptionIndex index = index_options(specs, {{"1", "--port"}, {"0", "--fancy"}});
  const auto parse = [&](const std::string& text) {
    ParsedCommand command;
    command.words = split_words(text);
    parse_options(specs, index, command);
    return command;
  };
  const ParsedCommand all =
      parse("model --backend x --fast -b=y --port 1 --fancy --new 3 4 --temperature -0.5 --config.a 1 > log");
  ASSERT_EQ(all.uses.size(), 8u);
  EXPECT_EQ(all.positional, Words{"model"});
  EXPECT_EQ(all.uses[0].value, "x");
  EXPECT_FALSE(all.uses[1].has_value);
  EXPECT_EQ(all.uses[2].value, "y");
  EXPECT_EQ(all.uses[3].spec, -2);
  EXPECT_EQ(all.uses[5].spec, -1);
  EXPECT_EQ(all.uses[5].value, "3 4");
  EXPECT_EQ(all.uses[6].value, "-0.5");
  EXPECT_EQ(all.uses[7].subkey, "a");
  EXPECT_EQ(parse("--back z").uses[0].spec, 0);
  EXPECT_EQ(parse("--fa").uses[0].spec, -1) << "two options begin so";
  EXPECT_EQ(parse("--backend --fast").uses[0].has_value, false);
}

TEST(Nearest, SlipsButNotOtherWords) {
  EXPECT_EQ(nearest("tritn", {"triton", "cutedsl"}), "triton");
  EXPECT_EQ(nearest("flashinfr", {"flashinfer", "flashkda"}), "flashinfer");
  EXPECT_EQ(nearest("zebra", {"triton", "cutedsl"}), "");
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3u);
}

TEST(Fuzz, DamagedCommands) {
  std::mt19937 random(20260);
  const std::string pieces[] = {"--linear-attn-backend",
                                "--linear-attn-verify-backend",
                                "triton",
                                "flashinfer",
                                "--speculative-eagle-topk",
                                "4",
                                "--speculative-algorithm",
                                "EAGLE",
                                "NGRAM",
                                "--page-size",
                                "0",
                                "-1",
                                "999999999999999999999",
                                "--tp-size",
                                "--mamba-track-interval",
                                "--speculative-config",
                                "'{\"method\":\"ngram\",\"num_speculative_tokens\":3}'",
                                "{",
                                "'",
                                "\"",
                                "\\",
                                "=",
                                "--",
                                "-",
                                "\n",
                                "\xff\xfe",
                                "--additional-config",
                                "[1,2",
                                "--speculative-num-steps",
                                "-9223372036854775808",
                                "--speculative-ngram-max-bfs-breadth",
                                "--dp-size",
                                "--enable-dp-attention",
                                "--speculative-config.method",
                                "#",
                                "|",
                                "$(x)",
                                "é"};
  const size_t rounds = 3000;
  for (size_t round = 0; round < rounds; ++round) {
    std::string text;
    for (size_t n = random() % 14; n > 0; --n) {
      text += pieces[random() % std::size(pieces)];
      if (random() % 5) text += ' ';
    }
    for (size_t n = random() % 4; n > 0 && !text.empty(); --n)
      text[random() % text.size()] = static_cast<char>(random());
    LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(text.data()), text.size());
  }
}

}  // namespace
}  // namespace kda::doctor
