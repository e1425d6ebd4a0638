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

// A message as an engine prints it: holes filled with something, the first number being `number`.
std::string concrete(const Json& record, int number = 16) {
  std::string text = record.at("message_pattern");
  for (size_t open = text.find('{'); open != std::string::npos; open = text.find('{', open)) {
    const size_t close = text.find('}', open);
    if (close == std::string::npos) break;
    const bool is_option = text.substr(open, close - open + 1) == "{flag}";
    const char* option = record.at("engine") == "vllm" ? "--kda-prefill-backend" : "--linear-attn-verify-backend";
    const bool is_class = text.substr(open, close - open + 1) == "{class_name}";
    text.replace(open, close - open + 1, is_option ? option : is_class ? "NvidiaKDAKernel" : std::to_string(number));
    number += 13;
  }
  return text;
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
    const std::string id = record.at("id"), message = concrete(record);
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

// The error of a long log is at its end.
TEST(Explain, FoundAtTheEndOfALongLog) {
  std::string log;
  while (log.size() < (1 << 19)) log += "[2026-11-30 12:00:01] INFO decode batch, running requests: 12\n";
  const auto matches =
      catalogue().search(log + "RuntimeError: KDA verify needs 12 scratch steps, but intermediate_ssm");
  ASSERT_EQ(matches.size(), 1u);
  EXPECT_EQ(matches[0].record->at("id"), "SGL-VERIFY-SCRATCH");
}

bool found(std::string_view text, const Json& record) { return among(catalogue().search(text), record, 8); }

TEST(Explain, FoundByPiecesAndOtherNumbers) {
  for (const Json& record : catalogue().records()) {
    const std::string message = concrete(record);
    SCOPED_TRACE(record.at("id"));
    const size_t most = message.size() * 6 / 10;
    std::string renumbered = message;
    for (char& c : renumbered)
      if (c >= '0' && c <= '9') c = static_cast<char>('0' + (c - '0' + 3) % 10);
    EXPECT_TRUE(found(renumbered, record)) << renumbered;
    EXPECT_TRUE(found(concrete(record, 48611), record));
    constexpr size_t kTellable = 16;  // shorter ones have no telling part
    if (MessagePattern(record.at("message_pattern").get<std::string>()).letters() < kTellable) continue;
    for (const std::string& piece :
         {message.substr(0, most), message.substr(message.size() - most), message.substr(0, most) + "...",
          "... " + message.substr(message.size() - most), "ValueError: " + message.substr(0, most)}) {
      // "argument --option" without any of what is wrong with it is no piece of one error.
      if (piece.find("argument --") == std::string::npos || piece.find(": ", piece.find("--")) != std::string::npos) {
        EXPECT_TRUE(found(piece, record)) << piece;
      }
    }
    const std::string above =
        "Traceback (most recent call last):\n  File \"/srv/app/model_runner.py\", line 97, in init\n    self.check()\n";
    EXPECT_TRUE(found(above + record.value("error_class", "") + ": " + message, record));
  }
}

TEST(Explain, TheTextThatSaysMoreComesFirst) {
  const std::pair<const char*, const char*> cases[] = {
      {"--linear-attn-decode-backend flashkda is not supported", "SGL-FLASHKDA-DECODE"},
      {"--linear-attn-decode-backend flashkda is not supported ...", "SGL-FLASHKDA-DECODE"},
      {"ValueError: --linear-attn-decode-backend flashkda is not supported: FlashKDA is prefill-only. Use "
       "--linear-attn",
       "SGL-FLASHKDA-DECODE"},
      {"\xe2\x80\x9c--linear-attn-decode-backend flashkda is not supported: FlashKDA is "
       "prefill\xe2\x80\xa6\xe2\x80\x9d",
       "SGL-FLASHKDA-DECODE"},
      {"argument --linear-attn-verify-backend: invalid choice: 'ptx'", "SGL-CHOICE"},
      {"argument --linear-attn-verify-backend: invalid choice: 'ptx' (choose from 'triton', 'helion')", "SGL-CHOICE"},
      {"vllm serve: error: argument --kda-decode-backend: invalid choice: 'ptx' (choose from 'auto', 'triton')",
       "VLLM-CHOICE"},
      {"api_server.py: error: argument --kda-prefill-backend: invalid choice: 'cutedsl'", "VLLM-CHOICE"},
      {"MambaSpec.page_size_bytes", "VLLM-STATE-BF16-48B"},
      {"page_size_bytes", "VLLM-STATE-BF16-48B"},
      {"\x1b[31mRuntimeError\x1b[0m: KDA verify needs \x1b[1m12\x1b[0m scratch steps, but intermediate_ssm only has 8.",
       "SGL-VERIFY-SCRATCH"},
      {"RuntimeError: KDA verify needs 12 scratch\nsteps, but   intermediate_ssm", "SGL-VERIFY-SCRATCH"},
  };
  for (const auto& [text, id] : cases) {
    const auto matches = catalogue().search(text);
    ASSERT_FALSE(matches.empty()) << text;
    EXPECT_TRUE(matches[0].exact) << text;
    EXPECT_EQ(matches[0].record->at("id"), id) << text;
  }
}

TEST(Explain, OtherErrorsMatchNothing) {
  const char* const texts[] = {
      "hello",
      "segmentation fault",
      "CUDA out of memory",
      "{",
      "error",
      "",
      "   \n",
      "AssertionError",
      "ValueError",
      "is not supported",
      "...",
      "--",
      "KDA",
      "cuda",
      "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 139.81 "
      "GiB "
      "of which 1.06 GiB is free.",
      "RuntimeError: CUDA error: an illegal memory access was encountered",
      "RuntimeError: CUDA error: device-side assert triggered\nCompile with `TORCH_USE_CUDA_DSA` to enable assertions.",
      "RuntimeError: CUDA error: no kernel image is available for execution on the device",
      "RuntimeError: CUDA error: invalid argument",
      "RuntimeError: NCCL error in: ProcessGroupNCCL.cpp:1691, unhandled system error",
      "RuntimeError: Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!",
      "RuntimeError: mat1 and mat2 shapes cannot be multiplied (4096x7168 and 2048x7168)",
      "RuntimeError: The size of tensor a (32) must match the size of tensor b (64) at non-singleton dimension 1",
      "ModuleNotFoundError: No module named 'torch'",
      "ImportError: libcudart.so.12: cannot open shared object file: No such file or directory",
      "ImportError: cannot import name 'AutoTokenizer' from 'transformers'",
      "AttributeError: 'NoneType' object has no attribute 'config'",
      "AttributeError: module 'torch' has no attribute 'compile'",
      "TypeError: __init__() got an unexpected keyword argument 'device'",
      "TypeError: unsupported operand type(s) for +: 'int' and 'str'",
      "TypeError: '<' not supported between instances of 'str' and 'int'",
      "KeyError: 'model.layers.0.self_attn.q_proj.weight'",
      "IndexError: list index out of range",
      "ValueError: too many values to unpack (expected 2)",
      "ValueError: Tokenizer class KimiTokenizer does not exist or is not currently imported.",
      "OverflowError: math range error",
      "FileNotFoundError: [Errno 2] No such file or directory: '/models/kimi/config.json'",
      "OSError: [Errno 98] Address already in use",
      "PermissionError: [Errno 13] Permission denied: '/root/.cache/huggingface'",
      "ConnectionRefusedError: [Errno 111] Connection refused",
      "requests.exceptions.HTTPError: 401 Client Error: Unauthorized for url: https://example.org/api/models",
      "train.py: error: argument --mode: invalid choice: 'fast' (choose from 'slow', 'exact')",
      "tool.py: error: the following arguments are required: --input",
      "torch._dynamo.exc.Unsupported: call_function BuiltinVariable(print) [] {}",
      "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 262144, Hardware limit: 232448.",
      "subprocess.CalledProcessError: Command '['ninja', '-v']' returned non-zero exit status 1.",
      "q \xff k \x01 v kv nk hv",
      "bash: kda: command not found",
      "Killed",
      "json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)",
      "UnicodeDecodeError: 'utf-8' codec can't decode byte 0xff in position 0: invalid start byte",
      "RecursionError: maximum recursion depth exceeded while calling a Python object",
      "SyntaxError: invalid syntax",
      "terminate called after throwing an instance of 'std::bad_alloc'",
      "error: could not compile `serde` (lib) due to 2 previous errors",
      "fatal: not a git repository (or any of the parent directories): .git"};
  for (const char* text : texts)
    for (const Match& match : catalogue().search(text))
      ADD_FAILURE() << text << " -> " << match.record->at("id") << (match.exact ? "" : " (similar)");
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
  struct Paste {
    const char* text;  // percent-encoded: pasted through the address
    const char* first;
    const char* count;
  };
  const Paste pastes[] = {
      {"ValueError%3A%20spec-verify%20ring%20too%20small%3A%2016%20%3C%202%20*%2012%20(early-flush%20margin)",
       "SGL-RING-SMALL", "1 found"},
      // cut, with other numbers, and a text that the engines share
      {"ring%20too%20small%3A%20160%20%3C%202%20*%2096%20(early-fl...", "SGL-RING-SMALL", "1 found"},
      {"vllm%20serve%3A%20error%3A%20argument%20--kda-decode-backend%3A%20invalid%20choice%3A%20'ptx'", "VLLM-CHOICE",
       "1 found"}};
  for (const Paste& paste : pastes) {
    const std::string command = program + " --headless --no-sandbox --disable-gpu --user-data-dir=" + profile +
                                " --virtual-time-budget=3000 --dump-dom \"file://" + KDA_SOURCE_DIR +
                                "/docs/errors/index.html#" + paste.text + "\" 2>/dev/null";
    std::FILE* pipe = popen(command.c_str(), "r");
    ASSERT_NE(pipe, nullptr);
    std::string dom;
    char buffer[1 << 14];
    for (size_t n; (n = std::fread(buffer, 1, sizeof buffer, pipe)) > 0;) dom.append(buffer, n);
    if (pclose(pipe) != 0 || dom.empty()) GTEST_SKIP() << "Chromium does not start here";
    EXPECT_NE(dom.find(std::string("<li class=\"hit\"><a href=\"") + paste.first + ".html\">"), std::string::npos)
        << paste.text;
    EXPECT_NE(dom.find(paste.count), std::string::npos) << paste.text;
  }
}

}  // namespace
}  // namespace kda::doctor
