// The launch-command parser and the doctor on any bytes: it answers or refuses with one line, and never takes long.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "doctor/doctor.h"
#include "doctor/explain.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace kda::doctor;
  static const Doctor doctor{Resources{}};
  static const Catalogue catalogue{Resources{}};
  const std::string text(reinterpret_cast<const char*>(data), size);
  try {
    const auto words = split_words(text);
    if (split_words(join_words(words)) != words) std::abort();  // printing and splitting are inverse
  } catch (const UsageError&) {
  }
  Question question;
  question.gpu = "b200";
  // the first byte chooses what stands in front, so that most inputs reach the options
  const bool vllm = size > 0 && (data[0] & 1);
  question.words = {(vllm ? "vllm serve moonshotai/Kimi-K3 " : "sglang serve --model-path moonshotai/Kimi-K3 ") + text};
  question.fixes = size % 7 == 0;
  try {
    to_json(doctor.diagnose(question)).dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  } catch (const UsageError& error) {
    if (std::string(error.what()).empty()) std::abort();
  }
  catalogue.search(text);
  return 0;
}
