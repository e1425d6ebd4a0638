// Launch commands with the verdict that they must get, each with its reason.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>

#include "doctor/arguments.h"
#include "doctor/support.h"

namespace kda::doctor {
namespace {

const Json& commands() {
  static const Json rows = read_json(std::string(KDA_SOURCE_DIR) + "/tests/doctor/commands.json");
  return rows;
}

TEST(Commands, ThereAreEnoughAndEachHasAReason) {
  EXPECT_GE(commands().size(), 120u);
  for (const Json& row : commands()) EXPECT_FALSE(row.at("why").get<std::string>().empty()) << row;
}

TEST(Commands, GetTheirVerdicts) {
  for (const Json& row : commands()) {
    SCOPED_TRACE(row.at("command").get<std::string>() + "  [" + row.at("gpu").get<std::string>() + "] " +
                 row.at("why").get<std::string>());
    const Report report = the_doctor().diagnose(question_of(row, "command"));
    EXPECT_EQ(report.verdict, row.at("verdict").get<std::string>());
    const Json phases = row.value("phases", Json::object());
    for (const auto& [name, expected] : phases.items()) {
      const PhaseReport* phase = phase_of(report, name);
      ASSERT_NE(phase, nullptr) << name;
      EXPECT_EQ(phase->outcome, expected.value("outcome", "")) << name << ": " << phase->reason;
      if (expected.contains("resolved")) {
        EXPECT_EQ(phase->resolved, expected["resolved"]) << name;
      }
      if (expected.contains("when")) {
        EXPECT_EQ(phase->when, expected["when"].get<std::string>()) << name;
      }
      if (expected.contains("code")) {
        EXPECT_EQ(phase->code, expected["code"].get<std::string>()) << name;
      }
    }
    ASSERT_EQ(report.phases.size(), 6u);
    for (const PhaseReport& phase : report.phases) EXPECT_FALSE(phase.reason.empty()) << phase.phase;
  }
}

TEST(Commands, FixesRunAndAreMinimal) {
  size_t fixed = 0, broken = 0;
  for (const Json& row : commands()) {
    Question question = question_of(row, "fix");
    const Report report = the_doctor().diagnose(question);
    if (report.verdict != "fails" && report.verdict != "degraded") {
      EXPECT_TRUE(report.fixes.empty());
      continue;
    }
    ++broken;
    fixed += report.fixes.empty() ? 0 : 1;
    question.fixes = false;
    for (const Fix& fix : report.fixes) {
      SCOPED_TRACE(row.at("command").get<std::string>() + "  ->  " + join_words(fix.command));
      EXPECT_FALSE(fix.changes.empty());
      question.words = fix.command;
      const Report again = the_doctor().diagnose(question);
      EXPECT_EQ(again.verdict, fix.verdict);
      EXPECT_TRUE(again.verdict == "runs" || (again.verdict == "degraded" && report.verdict == "fails"));
      question.words = {join_words(fix.command)};  // quoting survives printing and pasting
      EXPECT_EQ(the_doctor().diagnose(question).verdict, again.verdict);
    }
  }
  // some have no fix by options: a CPU for vLLM, a head size of 512, a config outside the engine's range
  EXPECT_GE(fixed + 8, broken);
}

TEST(Commands, AnswersInTime) {
  Question question;
  question.gpu = "b200";
  question.words = {
      "sglang serve --model-path moonshotai/Kimi-K3 --linear-attn-backend flashinfer --enable-linear-replayssm-spec "
      "--speculative-algorithm NGRAM --mamba-radix-cache-strategy no_buffer --page-size 64 --tp-size 7"};
  // Processor time of this single-threaded work: what a machine that does nothing else waits.
  double ms = 1e9;
  for (int repeat = 0; repeat < 3; ++repeat) {
    const std::clock_t begin = std::clock();
    const Doctor doctor{Resources{}};
    doctor.diagnose(question);
    ms = std::min(ms, 1e3 * static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC);
  }
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "no time limits under sanitizers; took " << ms << " ms";
#endif
  EXPECT_LT(ms, 50);
}

TEST(Commands, UnknownOptionsAreListedNotFatal) {
  Question question;
  question.gpu = "h200";
  question.words = {
      "sglang serve --model-path moonshotai/Kimi-Linear-48B-A3B --linear-atn-backend triton --frobnicate 3 4"};
  const Report report = the_doctor().diagnose(question);
  EXPECT_EQ(report.verdict, "runs");
  ASSERT_EQ(report.engine["unknown_options"].size(), 2u);
  EXPECT_EQ(report.engine["unknown_options"][0], "--linear-atn-backend triton (did you mean --linear-attn-backend?)");
  EXPECT_EQ(report.engine["unknown_options"][1], "--frobnicate 3 4");
  EXPECT_NE(report.engine["notes"].dump().find("SGL-UNRECOGNIZED"), std::string::npos);
}

Report ask(const std::string& command, const std::string& version = {}, const std::string& config = {}) {
  Question question;
  question.gpu = "h200";
  question.words = {command};
  question.engine_version = version;
  question.model_config = config;
  return the_doctor().diagnose(question);
}

const char kSglang[] = "sglang serve --model-path moonshotai/Kimi-Linear-48B-A3B-Instruct ";
const char kVllm[] = "vllm serve moonshotai/Kimi-K3 --tensor-parallel-size 8 ";

// What the engines' parsers refuse comes out with its code, their own text and a way out; "" = accepted.
TEST(Arguments, RefusedAsTheParserDoes) {
  struct Case {
    const char *engine, *words, *code, *message;
  };
  const Case cases[] = {
      {kSglang, "stray --port 1 x", "SGL-UNRECOGNIZED", "unrecognized arguments: stray x"},
      {kSglang, "stray --bogus 3 4", "SGL-UNRECOGNIZED", "unrecognized arguments: stray --bogus 3 4"},
      {kSglang, "--disable-radix-cache true", "SGL-UNRECOGNIZED", "unrecognized arguments: true"},
      {kSglang, "--trust-remote-code yes", "SGL-UNRECOGNIZED", "unrecognized arguments: yes"},
      {kSglang, "--tp-size 8 \\ \n --port 1", "SGL-UNRECOGNIZED", "unrecognized arguments:  "},
      {kSglang, "-- x", "SGL-UNRECOGNIZED", "unrecognized arguments: -- x"},
      {kSglang, "--tp-size abc", "SGL-VALUE", "argument --tp-size/--tensor-parallel-size: invalid int value: 'abc'"},
      {kSglang, "--tp abc", "SGL-VALUE", "argument --tp-size/--tensor-parallel-size: invalid int value: 'abc'"},
      {kSglang, "--tp-size=", "SGL-VALUE", "argument --tp-size/--tensor-parallel-size: invalid int value: ''"},
      {kSglang, "--tp-size 8.0", "SGL-VALUE", "argument --tp-size/--tensor-parallel-size: invalid int value: '8.0'"},
      {kSglang, "--tp-size abc --tp-size 8", "SGL-VALUE",
       "argument --tp-size/--tensor-parallel-size: invalid int value: 'abc'"},
      {kSglang, "--port http", "SGL-VALUE", "argument --port: invalid int value: 'http'"},
      {kSglang, "--mem-fraction-static lots", "SGL-VALUE",
       "argument --mem-fraction-static: invalid float value: 'lots'"},
      {kSglang, "--numa-node 0 x", "SGL-VALUE", "argument --numa-node: invalid int value: 'x'"},
      {kSglang, "--extra-metric-labels '{'", "SGL-VALUE", "argument --extra-metric-labels: invalid loads value: '{'"},
      {kSglang, "--context-length 8q", "SGL-VALUE",
       "argument --context-length: Invalid integer value: '8q'. Use a plain integer, SI suffixes (1k, 1M), or IEC "
       "suffixes (1Ki, 1Mi). Suffixes are case-sensitive."},
      {kSglang, "--tp-size", "SGL-VALUE-MISSING", "argument --tp-size/--tensor-parallel-size: expected one argument"},
      {kSglang, "--tp-size --port 1", "SGL-VALUE-MISSING",
       "argument --tp-size/--tensor-parallel-size: expected one argument"},
      {kSglang, "--api-key -secret", "SGL-VALUE-MISSING", "argument --api-key: expected one argument"},
      {kSglang, "--numa-node", "SGL-VALUE-MISSING", "argument --numa-node: expected at least one argument"},
      {kSglang, "--enable-mis=true", "SGL-FLAG-VALUE", "argument --enable-mis: ignored explicit argument 'true'"},
      {kSglang, "--trust-remote-code=1", "SGL-FLAG-VALUE",
       "argument --trust-remote-code: ignored explicit argument '1'"},
      {kSglang, "--kv-cache-dtype fp9", "SGL-CHOICE",
       "argument --kv-cache-dtype: invalid choice: 'fp9' (choose from 'auto', 'fp8_e5m2', 'fp8_e4m3', 'mxfp8', 'bf16', "
       "'bfloat16', 'nvfp4', 'fp4_mx_block16')"},
      {kSglang, "--pp 2", "SGL-AMBIGUOUS",
       "ambiguous option: --pp could match --pp-size, --pp-max-micro-batch-size, --pp-async-batch-depth"},
      {kSglang, "--tp 2 --tp-size ' 8 ' --dp 1 --page-size 6_4", "", ""},
      {kSglang, "--context-length 8k --max-total-tokens 1Mi --mem-fraction-static .8 --api-key '-secret key'", "", ""},
      {kSglang, "--numa-node 0 1 --model-checksum --lora-paths a=b c=d --port=30000 --random-seed -1", "", ""},
      {kSglang, "--linear-attn-backend tritn --linear-attn-backend triton", "SGL-CHOICE",
       "argument --linear-attn-backend: invalid choice: 'tritn' (choose from 'triton', 'cutedsl', 'flashinfer', "
       "'flashkda', 'nvidia_kda', 'ptx_kda', 'helion', 'intel_xpu')"},
      {kVllm, "stray", "VLLM-UNRECOGNIZED", "unrecognized arguments: stray"},
      {kVllm, "--model other", "VLLM-UNRECOGNIZED", "unrecognized arguments: moonshotai/Kimi-K3"},
      {kVllm, "--use-replayssm true", "VLLM-UNRECOGNIZED", "unrecognized arguments: true"},
      {kVllm, "-tp three", "VLLM-VALUE", "argument --tensor-parallel-size/-tp: invalid int value: 'three'"},
      {kVllm, "-tp", "VLLM-VALUE-MISSING", "argument --tensor-parallel-size/-tp: expected one argument"},
      {kVllm, "--enable-lora=yes", "VLLM-FLAG-VALUE", "argument --enable-lora: ignored explicit argument 'yes'"},
      {kVllm, "--speculative-config {method:ngram}", "VLLM-VALUE",
       "argument --speculative-config/-sc: Value {method:ngram} cannot be converted to <function loads>."},
      {kVllm, "--speculative-config '[]'", "VLLM-CONFIG-OBJECT", "'list' object has no attribute 'update'"},
      {kVllm, "--speculative-config 3", "VLLM-CONFIG-OBJECT", "'int' object has no attribute 'update'"},
      {kVllm, "--additional-config '\"x\"'", "VLLM-CONFIG-OBJECT", ""},
      {kVllm, "--kda triton", "VLLM-AMBIGUOUS",
       "ambiguous option: --kda could match --kda-prefill-backend, --kda-decode-backend"},
      {kVllm, "--speculative-config None --additional-config ''", "", ""},
      {kVllm, "--speculative-config null --served-model-name a b c --tensor_parallel_size 8 -O3 -q fp8", "", ""},
      {kVllm, "--kda-prefill triton --speculative-config.method ngram --speculative_config.num_speculative_tokens=3",
       "", ""},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(std::string(c.engine) + c.words);
    std::string command = std::string(c.engine) + c.words;
    if (std::string(c.words).rfind("--model ", 0) == 0) command += " --model moonshotai/Kimi-K3";
    const Report report = ask(command);
    const PhaseReport& launch = *phase_of(report, "launch");
    EXPECT_EQ(launch.outcome, *c.code ? "refused" : "runs") << launch.message;
    EXPECT_EQ(launch.code, c.code);
    EXPECT_EQ(launch.message, c.message);
    EXPECT_EQ(report.verdict, *c.code ? "fails" : "runs");
    EXPECT_EQ(report.fixes.empty(), *c.code == '\0' || launch.code == std::string("SGL-AMBIGUOUS") ||
                                        launch.code == std::string("VLLM-AMBIGUOUS"));
    if (!report.fixes.empty()) {
      EXPECT_EQ(report.fixes[0].verdict, "runs");
    }
  }
}

TEST(Arguments, StrayWordsAreListedAndTakenOutByAFix) {
  const Report report = ask(std::string(kSglang) + "one --disable-radix-cache two");
  EXPECT_EQ(report.engine["stray_words"], (Json{"one", "two"}));
  ASSERT_FALSE(report.fixes.empty());
  EXPECT_EQ(join_words(report.fixes[0].command), std::string(kSglang) + "--disable-radix-cache");
  EXPECT_EQ(report.fixes[0].changes, (std::vector<std::string>{"- one", "- two"}));
  EXPECT_EQ(join_words(ask(std::string(kSglang) + "--enable-dp-attention=1").fixes[0].command),
            std::string(kSglang) + "--enable-dp-attention");
}

TEST(Arguments, TheModelAsAWord) {
  EXPECT_EQ(ask("sglang serve moonshotai/Kimi-Linear-48B-A3B-Instruct --tp 2").verdict, "runs");
  EXPECT_THROW(ask("sglang serve --tp 2 moonshotai/Kimi-Linear-48B-A3B-Instruct"), UsageError);
  EXPECT_THROW(ask("python -m sglang.launch_server moonshotai/Kimi-K3"), UsageError);
  EXPECT_EQ(ask("vllm serve --tensor-parallel-size 8 moonshotai/Kimi-K3 --port 1").verdict, "runs");
  EXPECT_EQ(ask("vllm serve --new-switch moonshotai/Kimi-K3 --tensor-parallel-size 8").verdict, "runs");
}

TEST(Arguments, OtherWaysToStart) {
  EXPECT_EQ(ask("python3 -u /opt/sglang/launch_server.py --model-path moonshotai/Kimi-Linear-48B-A3B-Instruct").verdict,
            "runs");
  EXPECT_EQ(ask("docker run --gpus all vllm/vllm-openai:v0.33.0 --model moonshotai/Kimi-K3 -tp 8").verdict, "runs");
  EXPECT_THROW(ask("docker pull vllm/vllm-openai:v0.33.0"), UsageError);
  EXPECT_THROW(ask("sglang serve --model-path \xE2\x80\x9Cmoonshotai/Kimi-K3\xE2\x80\x9D"), UsageError);
  EXPECT_NE(phase_of(ask(std::string(kSglang) + "\xE2\x80\x94tp 8"), "launch")->reason.find("typographic dash"),
            std::string::npos);
  for (const char* ranks : {"--tp-size 0", "--tp-size -1", "--pp-size 0", "--dp-size -3"}) {
    EXPECT_EQ(phase_of(ask(std::string(kSglang) + ranks), "launch")->code, "SGL-RANKS") << ranks;
  }
  EXPECT_EQ(phase_of(ask(std::string(kVllm) + "-tp -2"), "launch")->code, "VLLM-RANKS");
}

TEST(Arguments, DottedKeysReplaceThePlainConfig) {
  const Report report = ask(std::string(kVllm) +
                            "--speculative-config '{\"method\": \"eagle3\"}' "
                            "--speculative-config.method ngram --speculative-config.a.b 1 "
                            "--speculative-config.num_speculative_tokens 3");
  EXPECT_EQ(report.scope["opt"]["speculative_config"],
            (Json{{"method", "ngram"}, {"a", {{"b", 1}}}, {"num_speculative_tokens", 3}}));
}

TEST(Arguments, HelpAndUnknownVariablesAreWrongUse) {
  const auto complaint = [](const std::string& command) {
    try {
      ask(command);
    } catch (const UsageError& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_NE(complaint(std::string(kSglang) + "--help").find("asks for help"), std::string::npos);
  EXPECT_NE(complaint(std::string(kSglang) + "--hel").find("asks for help"), std::string::npos);
  EXPECT_NE(complaint(std::string(kVllm) + "-h").find("asks for help"), std::string::npos);
  EXPECT_NE(complaint(std::string(kSglang) + "--tp $N").find("--tp-size is $N here"), std::string::npos);
  EXPECT_NE(complaint(std::string(kSglang) + "$MORE").find("$MORE"), std::string::npos);
  EXPECT_NE(complaint("vllm serve $MODEL").find("$MODEL"), std::string::npos);
  EXPECT_EQ(complaint(std::string(kSglang) + "--port $PORT --api-key ${KEY}"), "accepted");
  EXPECT_EQ(complaint("N=2\n" + std::string(kSglang) + "--tp $N"), "accepted");
}

TEST(Arguments, PythonsNumbers) {
  long long n = 0;
  double x = 0;
  for (const char* good : {"8", " 8 ", "+8", "-8", "1_000", "007", "99999999999999999999999"})
    EXPECT_TRUE(python_int(good, n)) << good;
  EXPECT_EQ(n, 1000000000000000);
  for (const char* bad : {"", " ", "8.0", "0x8", "1__0", "_1", "1_", "--8", "8 8", "eight", "1e3"})
    EXPECT_FALSE(python_int(bad, n)) << bad;
  for (const char* good : {"0.8", ".8", "8.", "1e-3", "inf", "-Infinity", "NaN", "1_0.5"})
    EXPECT_TRUE(python_float(good, x)) << good;
  for (const char* bad : {"", ".", "0x8", "1e", "e5", "inff", "1._5", "+"}) EXPECT_FALSE(python_float(bad, x)) << bad;
  EXPECT_EQ(python_repr("it's"), "\"it's\"");
  EXPECT_EQ(python_repr("a\\b'\"\n"), "'a\\\\b\\'\"\\n'");
}

TEST(Launch, NothingRunsBehindARefusedOne) {
  for (const std::string& command :
       {std::string(kSglang) + "--tp-size 0", std::string(kSglang) + "--tp-size x",
        std::string("vllm serve moonshotai/Kimi-Linear-48B-A3B-Instruct -tp 3"), std::string(kVllm) + "--enable-lora",
        std::string(kSglang) + "--linear-attn-decode-backend flashkda"}) {
    SCOPED_TRACE(command);
    const Report report = ask(command);
    EXPECT_EQ(phase_of(report, "launch")->outcome, "refused");
    for (const PhaseReport& phase : report.phases) {
      EXPECT_TRUE(phase.outcome == "refused" || phase.outcome == "unused") << phase.phase << " " << phase.outcome;
      if (phase.outcome == "unused") {
        EXPECT_TRUE(phase.code.empty() && phase.when.empty() && phase.message.empty());
      }
    }
    const PhaseReport& extend = *phase_of(report, "extend");
    EXPECT_EQ(extend.outcome, "unused");
    EXPECT_FALSE(extend.resolved.is_null()) << "what would have run stays";
    EXPECT_NE(extend.reason.find("the server does not start"), std::string::npos);
  }
}

TEST(Versions, OnlyDescribedOnesAreSure) {
  for (const char* bad : {"abc", "latest", "0.5.", ".5", "0..5", "0.5.23 ", "-1", "0.5.23x", "999999999999"})
    EXPECT_THROW(ask(kSglang, bad), UsageError) << bad;
  for (const char* described : {"0.5.23", "v0.5.23", "0.5.23.0"})
    EXPECT_EQ(ask(kSglang, described).verdict, "runs") << described;
  EXPECT_EQ(ask(kVllm, "0.33").verdict, "runs");
  for (const std::string& command :
       {std::string(kSglang), std::string(kVllm), std::string(kSglang) + "--tp-size abc",
        std::string(kSglang) + "--linear-attn-decode-backend flashkda",
        std::string("sglang serve --model-path moonshotai/Kimi-K3 --linear-attn-prefill-backend flashinfer")}) {
    const Report report = ask(command, "9.9");
    SCOPED_TRACE(command);
    EXPECT_EQ(report.verdict, "unknown");
    for (const PhaseReport& phase : report.phases) {
      EXPECT_TRUE(phase.outcome == "unknown" || phase.outcome == "unused") << phase.phase << " " << phase.outcome;
      if (phase.outcome == "unknown") {
        EXPECT_NE(phase.reason.find("To settle it"), std::string::npos);
      }
    }
  }
}

TEST(Packages, MustBeOnesThatDecideSomething) {
  Question question;
  question.gpu = "h200";
  question.words = {kSglang};
  question.installed = {"hellion"};
  EXPECT_THROW(the_doctor().diagnose(question), UsageError);
  question.installed = {"flash-kda", "helion"};
  EXPECT_EQ(the_doctor().diagnose(question).verdict, "runs");
  question.missing = {"flash_kda"};
  EXPECT_THROW(the_doctor().diagnose(question), UsageError);
  question.missing = {};
  question.cuda_version = "twelve";
  EXPECT_THROW(the_doctor().diagnose(question), UsageError);
}

TEST(Commands, EveryTextIsFilled) {
  // {name} as the data write it, dots for what was left out, <name> for a name that nobody set; the engines' own text
  // has "{None, 1}", and <...> with a blank says what only the running engine knows.
  const auto has_hole = testing::ContainsRegex(
      "[{][a-z_.]+(!r)?[}]|[.][.][.]|\xE2\x80\xA6|<[a-z.]+>|(^|[^a-zA-Z])None (heads|ranks)|^ | $");
  for (const char* hole :
       {"of {flag} and", "of {flag!r}", "so ...", "\xE2\x80\xA6", "a <model.name>", "None heads", " a", "a "}) {
    EXPECT_THAT(hole, has_hole);
  }
  for (const Json& row : commands()) {
    const Report report = the_doctor().diagnose(question_of(row, "filled"));
    std::vector<std::string> texts;
    for (const PhaseReport& phase : report.phases) {
      texts.push_back(phase.message);
      texts.push_back(phase.reason);
    }
    for (const Json& note : report.engine["notes"]) texts.push_back(note.get<std::string>());
    for (const Fix& fix : report.fixes) texts.push_back(fix.why);
    for (const std::string& text : texts) {
      EXPECT_THAT(text, testing::Not(has_hole)) << "of " << row.at("command");
    }
  }
}

TEST(Commands, WrongUseIsOneClearLine) {
  const auto complaint = [](const std::string& command, const std::string& gpu, const std::string& config = {}) {
    Question question;
    question.gpu = gpu;
    question.words = {command};
    question.model_config = config;
    try {
      the_doctor().diagnose(question);
    } catch (const UsageError& error) {
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_NE(complaint("ls -l", "h200").find("no launch command"), std::string::npos);
  EXPECT_NE(complaint("sglang serve --model-path 'open", "h200").find("quote"), std::string::npos);
  EXPECT_NE(complaint("sglang serve", "h200").find("no model is named"), std::string::npos);
  EXPECT_NE(complaint("sglang serve --model-path Kimi-Linaer-48B-A3B", "h200").find("did you mean"), std::string::npos);
  EXPECT_NE(complaint("vllm serve moonshotai/Kimi-K3", "rtx4091").find("did you mean rtx4090"), std::string::npos);
  const std::string path = std::string(KDA_BINARY_DIR) + "/doctor_bad.json";
  for (const char* text :
       {"", "{", "[1]", "{}", "{\"architectures\": 3}", "{\"architectures\": [\"LlamaForCausalLM\"]}",
        "{\"architectures\": [\"KimiLinearForCausalLM\"]}",
        "{\"architectures\": [\"KimiLinearForCausalLM\"], \"linear_attn_config\": {\"num_heads\": -1, \"head_dim\": "
        "128}}",
        "{\"architectures\": [\"KimiLinearForCausalLM\"], \"linear_attn_config\": 7}"}) {
    std::ofstream(path) << text;
    EXPECT_NE(complaint("vllm serve m", "h200", path), "accepted") << text;
  }
  std::ofstream(path) << "{\"model_type\": \"kimi_linear\"}";
  EXPECT_NE(complaint("vllm serve m", "h200", path)
                .find("has no \"architectures\" that names one: expected a list, such as "),
            std::string::npos);
  std::ofstream(path) << std::string(200000, '[') << std::string(200000, ']');
  EXPECT_NE(complaint("vllm serve m", "h200", path).find("not a JSON object"), std::string::npos);
  EXPECT_NE(complaint("vllm serve m", "h200", "/no/such/file").find("cannot be read"), std::string::npos);
}

TEST(Gpus, NamesAndNumbers) {
  const auto sm = [](const char* name) { return the_doctor().find_gpu(name).facts.value("sm", 0); };
  EXPECT_EQ(sm("h200"), 90);
  EXPECT_EQ(sm("RTX 4090"), 89);
  EXPECT_EQ(sm("rtx4090"), 89);
  EXPECT_EQ(sm("GB300"), 103);
  EXPECT_EQ(sm("sm_90"), 90);
  EXPECT_EQ(sm("sm_90a"), 90);
  EXPECT_EQ(sm("sm_120"), 120);
  EXPECT_EQ(sm("12.1"), 121);
  EXPECT_EQ(the_doctor().find_gpu("cpu").facts.value("vendor", ""), "cpu");
  EXPECT_EQ(the_doctor().find_gpu("mi300x").facts.value("vendor", ""), "amd");
  for (const char* bad : {"sm_", "sm_9999", "90.x", "unobtainium", "sm_00"})
    EXPECT_THROW(the_doctor().find_gpu(bad), UsageError) << bad;
}

}  // namespace
}  // namespace kda::doctor
