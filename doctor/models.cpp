// Which model and which GPU a question is about.
#include <algorithm>
#include <cctype>
#include <filesystem>

#include "doctor.h"

namespace kda::doctor {

namespace fs = std::filesystem;

namespace {

std::string squeeze(std::string_view text) {  // "RTX 4090", "rtx-4090", "rtx4090" are one name
  std::string out;
  for (const char c : text)
    if (std::isalnum(static_cast<unsigned char>(c)) || c == '.')
      out += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

Json parse_config(const std::string& path, const std::string& text) {
  const std::optional<Json> config = parse_json(text);
  if (!config || !config->is_object()) throw UsageError(path + " is not a JSON object: is it the model's config.json?");
  return *config;
}

std::string detected_gpu_name() {
  std::error_code error;
  const fs::path folder = "/proc/driver/nvidia/gpus";
  if (!fs::is_directory(folder, error)) return {};
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const auto text = read_file((entry.path() / "information").string(), 1 << 16);
    if (!text) continue;
    const size_t at = text->find("Model:");
    if (at == std::string::npos) continue;
    const size_t end = text->find('\n', at);
    std::string name = text->substr(at + 6, end - at - 6);
    name.erase(0, name.find_first_not_of(" \t"));
    return name;
  }
  return {};
}

}  // namespace

Gpu Doctor::find_gpu(const std::string& name) const {
  std::string wanted = name;
  bool detected = false;
  if (wanted.empty()) {
    wanted = detected_gpu_name();
    detected = true;
    if (wanted.empty()) wanted = "cpu";
  }
  std::string key = squeeze(wanted);
  for (const std::string_view maker : {"nvidia", "geforce", "tesla", "amd", "instinct"})  // "NVIDIA H200" is the H200
    if (!detected && key.size() > maker.size() && key.rfind(maker, 0) == 0) key.erase(0, maker.size());
  // sm_90, sm90, 9.0, sm_103a
  std::string digits = key.rfind("sm", 0) == 0 ? key.substr(2) : key;
  while (!digits.empty() && std::isalpha(static_cast<unsigned char>(digits.back())) && key.rfind("sm", 0) == 0)
    digits.pop_back();
  const size_t dot = digits.find('.');
  const bool numeric =
      digits.size() >= 2 && digits.size() <= 4 &&
      std::all_of(digits.begin(), digits.end(), [](unsigned char c) { return std::isdigit(c) || c == '.'; });
  if (numeric) {
    int major = 0, minor = 0;
    if (dot != std::string::npos && dot > 0 && dot + 1 < digits.size()) {
      major = std::stoi(digits.substr(0, dot));
      minor = std::stoi(digits.substr(dot + 1));
    } else if (dot == std::string::npos) {
      major = std::stoi(digits) / 10;
      minor = std::stoi(digits) % 10;
    }
    if (major < 1 || major > 20)
      throw UsageError("--gpu " + name + ": no such compute capability; expected one such as sm_90 or sm_103");
    Json facts = {{"vendor", "nvidia"}, {"major", major}, {"minor", minor}, {"sm", major * 10 + minor}};
    return {"sm_" + std::to_string(major * 10 + minor), facts};
  }
  if (key.rfind("sm", 0) == 0 && !digits.empty() &&
      std::all_of(digits.begin(), digits.end(), [](unsigned char c) { return std::isdigit(c) != 0; }))
    throw UsageError("--gpu " + name + ": no such compute capability; expected one such as sm_90 or sm_103");
  // The longest matching alias wins, so that "NVIDIA H200 NVL" is an H200 and "gb300" is not a b300.
  const Json* best = nullptr;
  size_t length = 0;
  std::vector<std::string> names;
  for (const Json& gpu : gpus_.at("gpus")) {
    for (const Json& alias : gpu.at("names")) {
      const std::string text = squeeze(alias.get<std::string>());
      names.push_back(text);
      const bool hit = detected ? key.find(text) != std::string::npos : key == text;
      if (hit && text.size() > length) {
        best = &gpu;
        length = text.size();
      }
    }
  }
  if (!best) {
    if (detected) throw UsageError("the GPU \"" + wanted + "\" is not in the table: give --gpu NAME or --gpu sm_NN");
    const std::string near = nearest(key, names);
    throw UsageError("--gpu " + name + ": not in the table" + (near.empty() ? "" : ", did you mean " + near + "?") +
                     "; sm_NN names any NVIDIA GPU by its compute capability, such as sm_90");
  }
  Json facts = *best;
  facts.erase("names");
  if (facts.value("vendor", "") == "nvidia") facts["sm"] = facts.value("major", 0) * 10 + facts.value("minor", 0);
  return {best->at("names").at(0).get<std::string>(), facts};
}

Json Doctor::find_model(const Question& question, const Engine& engine, const ParsedCommand& command,
                        std::string& label) const {
  std::string path;
  for (const OptionUse& use : command.uses)
    if (use.spec >= 0 && engine.options[static_cast<size_t>(use.spec)].field == engine.model_field && use.has_value())
      path = use.value();
  if (path.empty()) path = command.model;
  label = path.empty() ? question.model_config : path;

  return find_config(path, question.model_config);
}

Json Doctor::find_config(const std::string& path, const std::string& config_path) const {
  if (!config_path.empty()) {
    std::string file = config_path;
    std::error_code error;
    if (fs::is_directory(file, error)) file += "/config.json";
    const auto text = read_file(file);
    if (!text) throw UsageError("--model-config " + config_path + ": cannot be read");
    return parse_config(file, *text);
  }
  if (path.empty()) throw UsageError("no model is named: name one, or give --model-config FILE");
  for (const char* quote : {"\xE2\x80\x9C", "\xE2\x80\x9D", "\xE2\x80\x98", "\xE2\x80\x99"})
    if (path.find(quote) != std::string::npos)
      throw UsageError("the model is " + path +
                       " with a typographic quote, which belongs to the name: write plain quotes");
  if (path.find('$') != std::string::npos)
    throw UsageError("the model is " + path + " here: write its value, or give --model-config FILE");
  std::error_code error;
  if (fs::is_directory(path, error)) {
    const auto text = read_file(path + "/config.json");
    if (!text) throw UsageError("the model folder " + path + " has no readable config.json");
    return parse_config(path + "/config.json", *text);
  }
  const size_t slash = path.find_last_of('/', path.find_last_not_of('/'));
  const std::string last = squeeze(slash == std::string::npos ? path : path.substr(slash + 1));
  std::vector<std::string> names;
  const Json* best = nullptr;
  size_t length = 0;
  for (const Json& model : models_) {
    for (const Json& name : model.at("names")) {
      const std::string text = squeeze(name.get<std::string>());
      names.push_back(text);
      // "Kimi-Linear-48B-A3B-Instruct" is the known "Kimi-Linear-48B-A3B" with a suffix
      if (last.rfind(text, 0) == 0 && text.size() > length) {
        best = &model;
        length = text.size();
      }
    }
  }
  if (best) return best->at("config");
  const std::string near = nearest(last, names);
  throw UsageError("the model " + path + " is neither a folder here nor a known name" +
                   (near.empty() ? "" : " (did you mean " + near + "?)") + ": give --model-config FILE");
}

}  // namespace kda::doctor
