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

TEST(Split, CommandsOfAScript) {
  const auto words = [](const std::string& text) {
    std::vector<Words> out;
    for (const SimpleCommand& command : split_commands(text)) out.push_back(command.words);
    return out;
  };
  EXPECT_EQ(words("cd x && a b; c | d & e\nf"),
            (std::vector<Words>{{"cd", "x"}, {"a", "b"}, {"c"}, {"d"}, {"e"}, {"f"}}));
  EXPECT_EQ(words("a --x 1\n  --y 2\n\nb"), (std::vector<Words>{{"a", "--x", "1", "--y", "2"}, {"b"}}));
  EXPECT_EQ(words("a 8& b"), (std::vector<Words>{{"a", "8"}, {"b"}}));
  EXPECT_EQ(words("a > log 2>&1 --x >>other b &> both < in 3>/dev/null c"),
            (std::vector<Words>{{"a", "--x", "b", "c"}}));
  EXPECT_EQ(words("a '|' \";\" \\&"), (std::vector<Words>{{"a", "|", ";", "&"}}));
  EXPECT_EQ(words("(a b"), (std::vector<Words>{{"a", "b"}}));
}

TEST(Split, VariablesOfTheTextItself) {
  EXPECT_EQ(split_commands("M='x y'\na \"$M\" ${M} '$M' $N ${N:-z} $(b c)").back().words,
            (Words{"a", "x y", "x", "y", "$M", "$N", "z", "$(b c)"}));
  const auto commands = split_commands("export A=1\nexport B=$A\nC=3\nexport C D\nserve");
  EXPECT_EQ(commands.back().exported, (Words{"A=1", "B=1", "C=3"}));
  EXPECT_EQ(split_words(join_words({"A=x y", "a=", "$M", "b"})), (Words{"A=x y", "a=", "$M", "b"}));
  EXPECT_EQ(join_words({"A=x y", "b"}), "A='x y' b");
  EXPECT_EQ(
      split_commands("A=(--tp 8\n  # c\n 'x y' '')\nB=()\nserve \"${A[@]}\" ${B[@]} \"${B[@]}\" ${C[@]} p${A[@]}q")
          .back()
          .words,
      (Words{"serve", "--tp", "8", "x y", "", "${C[@]}", "p--tp", "8", "x y", "q"}));
  EXPECT_EQ(split_words("A=(open a; b"), (Words{}));
  std::string words_bomb = "A=('' '')";
  for (int i = 0; i < 40; ++i) words_bomb += "\nA=(\"${A[@]}\" \"${A[@]}\")";
  EXPECT_THROW(split_commands(words_bomb), UsageError);
  std::string bomb = "A=" + std::string(1000, 'x');
  for (int i = 0; i < 40; ++i) bomb += "\nA=$A$A";
  EXPECT_THROW(split_commands(bomb), UsageError);
}

const std::vector<Launcher> kLaunchers = {{{"python*", "-m", "engine.serve"}, ModelWord::kNone},
                                          {{"engine", "serve"}, ModelWord::kFirst}};

TEST(Launcher, PrefixesWrappersAndPaths) {
  const auto find = [&](const std::string& text) {
    ParsedCommand command;
    const int which = find_launcher(split_words(text), kLaunchers, command);
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

TEST(Launcher, InterpreterOptions) {
  const auto rest = [&](const std::string& text) {
    ParsedCommand command;
    if (find_launcher(split_words(text), kLaunchers, command) != 0) return std::string("none");
    return command.options_begin < command.words.size() ? command.words[command.options_begin] : std::string("end");
  };
  for (const char* python :
       {"python -u -m engine.serve", "python3.12 -X dev -O -m engine.serve", "/opt/venv/bin/python -m engine.serve",
        "python3 -OO -Wignore -W error -m engine.serve", "python -um engine.serve", "python -Xdev -mengine.serve",
        "python3.13t -I -m engine.serve", "python --check-hash-based-pycs never -m engine.serve",
        "uv run python -m engine.serve", "uv run -m engine.serve", "nohup python -u -m engine.serve",
        "exec python -m engine.serve", "time -p python -m engine.serve", "taskset -c 0-7 python -m engine.serve",
        "numactl --cpunodebind=0 --membind=0 python3 -B -m engine.serve", "env -u X A=1 python -m engine.serve"})
    EXPECT_EQ(rest(std::string(python) + " --x"), "--x") << python;
  for (const char* other :
       {"python -c engine.serve", "python -m", "python -u", "python engine.serve", "python -u serve.py",
        "python -m other", "python -h -m engine.serve", "python -W", "python - -m engine.serve", "uv run"})
    EXPECT_EQ(rest(other), "none") << other;
}

TEST(Launcher, FoundInTexts) {
  const auto find = [&](const Words& words, size_t* count = nullptr) { return find_launch(words, kLaunchers, count); };
  EXPECT_EQ(find({"cd /x && export A=1 && engine serve m > log 2>&1 &"}), (Words{"A=1", "engine", "serve", "m"}));
  EXPECT_EQ(find({"docker", "run", "-e", "B=2", "image", "bash", "-lc", "cd y; A='1 2' engine serve m | tee log"}),
            (Words{"B=2", "A=1 2", "engine", "serve", "m"}));
  EXPECT_EQ(find({"sh -c \"bash -c 'engine serve m'\""}), (Words{"engine", "serve", "m"}));
  EXPECT_EQ(find({"M=model; engine serve $M"}), (Words{"engine", "serve", "model"}));
  size_t count = 0;
  EXPECT_EQ(find({"engine serve a &\nengine serve b"}, &count), (Words{"engine", "serve", "a"}));
  EXPECT_EQ(count, 2u);
  EXPECT_EQ(find({"echo nothing"}), Words{});
  EXPECT_EQ(find({"a", "an 'open quote", "x"}), Words{});
}

TEST(Options, ValuesFlagsBeginningsAndUnknownOnes) {
  std::vector<OptionSpec> specs(4);
  specs[0] = {{"--backend", "-b"}, "backend", OptionSpec::Kind::kText, nullptr, {}};
  specs[1] = {{"--fast"}, "fast", OptionSpec::Kind::kFlag, false, {}};
  specs[2] = {{"--config"}, "config", OptionSpec::Kind::kJson, nullptr, {}};
  specs[3] = {{"--backbone"}, "backbone", OptionSpec::Kind::kText, nullptr, {}, true};  // removed
  const OptionIndex index = index_options(specs, {{{"--port"}, Arity::kOne},
                                                  {{"--fancy"}, Arity::kNone},
                                                  {{"--many"}, Arity::kOneOrMore},
                                                  {{"--perhaps"}, Arity::kOptional}});
  ParserRules rules{true, true, ModelWord::kAny, "model"};
  const auto parse = [&](const std::string& text) {
    ParsedCommand command;
    command.words = split_words(text);
    parse_options(specs, index, rules, command);
    return command;
  };
  const auto stray = [&](const std::string& text) {
    std::string all;
    const ParsedCommand command = parse(text);
    for (const size_t at : command.strays) all += command.words[at] + " ";
    return all;
  };
  const ParsedCommand all =
      parse("model --backend x --fast -b=y --port 1 --fancy --new 3 4 --temperature -0.5 --config.a 1");
  ASSERT_EQ(all.uses.size(), 8u);
  EXPECT_EQ(all.model, "model");
  EXPECT_TRUE(all.strays.empty());
  EXPECT_EQ(all.uses[0].value(), "x");
  EXPECT_FALSE(all.uses[1].has_value());
  EXPECT_EQ(all.uses[2].value(), "y");
  EXPECT_TRUE(all.uses[2].joined);
  EXPECT_EQ(all.uses[3].other, 0);
  EXPECT_FALSE(all.uses[5].known());
  EXPECT_EQ(all.uses[5].value(), "3 4");
  EXPECT_EQ(all.uses[6].value(), "-0.5");
  EXPECT_EQ(all.uses[7].subkey, "a");
  EXPECT_EQ(parse("--back z").uses[0].spec, 0) << "the removed option has no beginnings";
  EXPECT_EQ(parse("--fa").uses[0].candidates, (Words{"--fast", "--fancy"}));
  EXPECT_FALSE(parse("--backend --fast").uses[0].has_value());
  EXPECT_EQ(parse("-b8").uses[0].value(), "8");
  EXPECT_EQ(parse("--backend '-a b'").uses[0].value(), "-a b");
  EXPECT_EQ(parse("--backend=").uses[0].values, Words{""});
  EXPECT_EQ(parse("--backend=a=b").uses[0].value(), "a=b");
  EXPECT_EQ(parse("--many 1 2 3 --fast").uses[0].value(), "1 2 3");
  EXPECT_EQ(parse("--perhaps --fast").uses[0].has_value(), false);
  EXPECT_EQ(parse("--fa_ncy").uses[0].known(), false);
  // words that belong to nothing
  EXPECT_EQ(stray("model --fast true --port 1 2 --perhaps 3 4 x"), "true 2 4 x ");
  EXPECT_EQ(stray("model other"), "other ");
  EXPECT_EQ(parse("--new-flag model").model, "model") << "the word behind an unknown option may be the model";
  EXPECT_EQ(parse("-- model").model, "model");
  rules.model_word = ModelWord::kNone;
  EXPECT_EQ(stray("model"), "model ");
  EXPECT_EQ(stray("--fast -- x"), "-- x ");
  rules.model_word = ModelWord::kFirst;
  EXPECT_EQ(stray("model"), "");
  EXPECT_EQ(stray("--fast model"), "model ");
  rules.underscores = false;
  EXPECT_FALSE(parse("--back_end x").uses[0].known());
  EXPECT_THROW(parse([] {
                 std::string many;
                 for (int i = 0; i < 5000; ++i) many += "--x ";
                 return many;
               }()),
               UsageError);
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
                                ">",
                                "--tp",
                                "--pp",
                                "--trust-remote-code",
                                "--served-model-name",
                                "--speculative-config.a.b+",
                                "A=$A$A",
                                "export A=1",
                                "${A:-",
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
