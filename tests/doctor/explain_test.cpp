// The error reference: every record is found by its code, its message, its message with numbers, and in a traceback.
#include "doctor/explain.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <set>

#include "doctor/support.h"

namespace kda::doctor {
namespace {

const Catalogue& catalogue() {
  static const Catalogue all{Resources{}};
  return all;
}

// A message as an engine prints it: holes filled with something.
std::string concrete(std::string pattern) {
  int n = 3;
  for (size_t open = pattern.find('{'); open != std::string::npos; open = pattern.find('{', open)) {
    const size_t close = pattern.find('}', open);
    if (close == std::string::npos) break;
    pattern.replace(open, close - open + 1, std::to_string(n += 13));
  }
  return pattern;
}

bool among(const std::vector<Match>& matches, const Json& record, size_t first) {
  for (size_t i = 0; i < std::min(first, matches.size()); ++i)
    if (matches[i].exact && matches[i].record->at("id") == record.at("id")) return true;
  return false;
}

TEST(Explain, RecordsAreComplete) {
  const std::set<std::string> moments = {"launch", "after_weights", "first_use", "per_call"};
  std::set<std::string> ids;
  for (const Json& record : catalogue().records()) {
    SCOPED_TRACE(record.value("id", "?"));
    EXPECT_TRUE(ids.insert(record.at("id")).second);
    for (const char* key : {"engine", "versions", "error_class", "message_pattern", "phase", "meaning", "source"})
      EXPECT_FALSE(record.value(key, "").empty()) << key;
    for (const char* key : {"triggers", "situations", "solutions"}) {
      ASSERT_TRUE(record.contains(key) && record[key].is_array() && !record[key].empty()) << key;
      for (const Json& item : record[key]) EXPECT_FALSE(item.get<std::string>().empty()) << key;
    }
    EXPECT_TRUE(record.at("example_fix").contains("before") && record["example_fix"].contains("after"));
    EXPECT_FALSE(record.at("validation").value("shell", "").empty());
    EXPECT_FALSE(record.at("validation").value("python", "").empty());
    EXPECT_TRUE(moments.count(record.value("when", ""))) << record.value("when", "");
  }
  for (const Json& record : catalogue().records())
    for (const Json& id : record.at("related")) EXPECT_TRUE(ids.count(id)) << record["id"] << " -> " << id;
  EXPECT_GE(ids.size(), 200u);
}

TEST(Explain, FoundByCodeMessageAndTraceback) {
  for (const Json& record : catalogue().records()) {
    const std::string id = record.at("id"), message = concrete(record.at("message_pattern"));
    SCOPED_TRACE(id);
    EXPECT_TRUE(among(catalogue().search(id), record, 1));
    std::string lower = id;
    for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    EXPECT_TRUE(among(catalogue().search(lower), record, 1));
    EXPECT_TRUE(among(catalogue().search(message), record, 3)) << message;
    if (simplify(message).size() < 16) continue;  // too short to be told from other text
    const std::string traceback =
        "Traceback (most recent call last):\n  File \"/srv/app/scheduler.py\", line 214, in run\n    self.init()\n"
        "  File \"/srv/app/model_runner.py\", line 97, in init\n" +
        record.value("error_class", "") + ": " + message + "\n\n[2026-11-30 12:00:01] killed\n";
    EXPECT_TRUE(among(catalogue().search(traceback), record, 5)) << traceback;
  }
}

TEST(Explain, KnownTextsWithNumbersFindTheirRecord) {
  const std::pair<const char*, const char*> cases[] = {
      {"ValueError: spec-verify ring too small: 16 < 2 * 12 (early-flush margin)", "SGL-RING-SMALL"},
      {"RuntimeError: KDA verify needs 12 scratch steps, but intermediate_ssm only has 8.", "SGL-VERIFY-SCRATCH"},
      {"Unsupported KDA decode backend: LinearAttnKernelBackend.PTX_KDA. KDA supports 'triton', 'helion', 'cutedsl', "
       "or 'flashinfer'.",
       "SGL-DECODE-UNSUPPORTED"},
      {"1 validation error for VllmConfig\n  Value error, num_speculative_tokens was provided but without speculative "
       "model. [type=value_error]",
       "VLLM-SPEC-NO-MODEL"},
      {"ZeroDivisionError: integer modulo by zero", "VLLM-MTP-ZERO"},
      {"Total number of attention heads (32) must be divisible by tensor parallel size (5).", "VLLM-HEADS-TP"},
      {"lower_bound (safe gate) is only supported by TritonKDAKernel; got FlashInferKDAKernel.",
       "SGL-DECODE-LOWER-BOUND"},
      {"File \"mamba_hook.py\", line 118, in validate_mamba_extra_buffer\n    assert view.x >= view.y\nAssertionError",
       "SGL-TRACK-INTERVAL"},
      {"The shared Kimi GDN layer only supports the Triton KDA prefill backend, got 'flashkda'.", "VLLM-48B-PREFILL"},
      {"Trailing dims mismatch: dst.shape[2:]=(32, 128, 128) vs src.shape[3:]=(16, 128, 128)", "SGL-SCATTER-SHAPE"},
  };
  for (const auto& [text, id] : cases) {
    const auto matches = catalogue().search(text);
    ASSERT_FALSE(matches.empty()) << text;
    EXPECT_EQ(matches[0].record->at("id"), id) << text;
    EXPECT_TRUE(matches[0].exact);
  }
}

TEST(Explain, NonsenseMatchesNothing) {
  for (const char* text : {"hello", "segmentation fault", "CUDA out of memory", "{", "error", "", "   \n"})
    for (const Match& match : catalogue().search(text))
      EXPECT_FALSE(match.exact) << text << " -> " << match.record->at("id");
}

TEST(Explain, CutMessagesGetSuggestions) {
  const auto matches =
      catalogue().search("FlashInfer speculative decoding topk=1 unsupported tree verify retrieve_parent_token");
  ASSERT_FALSE(matches.empty());
  EXPECT_FALSE(matches[0].exact);
  EXPECT_EQ(matches[0].record->at("id"), "SGL-FLASHINFER-TREE");
}

// Each code that a description can answer with has a record whose "before" command gets it and whose "after" does not.
TEST(Explain, ExamplesAgreeWithTheDoctor) {
  std::set<std::string> used;
  for (const char* file : {"engines/sglang.json", "engines/vllm.json"}) {
    const std::string text = Resources().text(file);
    for (size_t at = text.find("\"code\": \""); at != std::string::npos; at = text.find("\"code\": \"", at + 1)) {
      const size_t begin = at + 9;
      used.insert(text.substr(begin, text.find('"', begin) - begin));
    }
  }
  for (const char* file : {"engines/sglang.json", "engines/vllm.json"}) {
    const Json codes = Resources().json(file).at("parser").at("codes");
    for (const auto& [kind, code] : codes.items()) used.insert(code.get<std::string>());
  }
  // configurations that no known model has, or no model at all
  const std::set<std::string> need_a_config = {"SGL-HEAD-DIM",       "SGL-CUTEDSL-HEAD-DIM", "SGL-LOG-NVIDIA-SHAPE",
                                               "SGL-LOG-PTX-SHAPE",  "VLLM-BOUND-RANGE",     "VLLM-NO-KDA-LORA",
                                               "VLLM-ALICE-HEADS",   "VLLM-ALICE-NEGATIVE",  "VLLM-ALICE-AUX",
                                               "VLLM-MTP-DIVISIBLE", "SGL-REQUIRED"};
  size_t checked = 0;
  for (const std::string& code : used) {
    SCOPED_TRACE(code);
    const Json* record = catalogue().find(code);
    ASSERT_NE(record, nullptr);
    if (need_a_config.count(code)) continue;
    const std::vector<std::string> words = split_words(record->at("validation").value("shell", ""));
    Question question;
    question.fixes = false;
    size_t i = 2;  // kda doctor
    for (; i < words.size() && words[i] != "--"; i += 2) {
      if (words[i] == "--gpu") question.gpu = words[i + 1];
      if (words[i] == "--installed") question.installed = {words[i + 1]};
      if (words[i] == "--missing") question.missing = {words[i + 1]};
      if (words[i] == "--cuda-version") question.cuda_version = words[i + 1];
    }
    const auto shows = [&](const std::string& command) {
      question.words = {command};
      const Report report = the_doctor().diagnose(question);
      for (const PhaseReport& phase : report.phases)
        if (phase.code == code) return true;
      return false;
    };
    // A pin that ends in another kernel shows no code: such records are named by name.
    EXPECT_TRUE(shows((*record)["example_fix"]["before"])) << (*record)["example_fix"]["before"];
    if (code != "VLLM-CPU") {
      EXPECT_FALSE(shows((*record)["example_fix"]["after"])) << (*record)["example_fix"]["after"];
    }
    ++checked;
  }
  EXPECT_GE(checked, 100u);
}

TEST(Pages, TheCommittedOnesAreUpToDate) {
  const std::string folder = std::string(KDA_SOURCE_DIR) + "/docs/errors/";
  std::set<std::string> names;
  for (const auto& [name, text] : error_pages(catalogue())) {
    names.insert(name);
    const auto committed = read_file(folder + name);
    ASSERT_TRUE(committed.has_value()) << name << ": run `kda explain --html docs/errors`";
    ASSERT_TRUE(*committed == text) << name << ": run `kda explain --html docs/errors`";
  }
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    EXPECT_TRUE(names.count(entry.path().filename())) << entry.path();
}

std::string browser() {
  for (const char* name : {"chromium", "chromium-browser", "google-chrome"}) {
    const std::string command = std::string("command -v ") + name + " > /dev/null 2>&1";
    if (std::system(command.c_str()) == 0) return name;
  }
  return {};
}

TEST(Pages, ABrowserFindsARecordByItsMessage) {
  const std::string program = browser();
  if (program.empty()) GTEST_SKIP() << "no Chromium here";
  const std::string profile = std::string(KDA_BINARY_DIR) + "/chromium-profile";
  // "spec-verify ring too small: 16 < 2 * 12 (early-flush margin)", pasted through the address
  const std::string command =
      program + " --headless --no-sandbox --disable-gpu --user-data-dir=" + profile +
      " --virtual-time-budget=3000 --dump-dom 'file://" + KDA_SOURCE_DIR +
      "/docs/errors/index.html#ValueError%3A%20spec-verify%20ring%20too%20small%3A%2016%20%3C%202%20*%2012%20"
      "(early-flush%20margin)' 2>/dev/null";
  std::FILE* pipe = popen(command.c_str(), "r");
  ASSERT_NE(pipe, nullptr);
  std::string dom;
  char buffer[1 << 14];
  for (size_t n; (n = std::fread(buffer, 1, sizeof buffer, pipe)) > 0;) dom.append(buffer, n);
  if (pclose(pipe) != 0 || dom.empty()) GTEST_SKIP() << "Chromium does not start here";
  EXPECT_NE(dom.find("<li class=\"hit\"><a href=\"SGL-RING-SMALL.html\">"), std::string::npos);
  EXPECT_NE(dom.find("1 found"), std::string::npos);
}

}  // namespace
}  // namespace kda::doctor
