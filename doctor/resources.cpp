#include "resources.h"

#include <algorithm>
#include <filesystem>
#include <fstream>

namespace kda::doctor {

namespace fs = std::filesystem;

std::optional<Json> parse_json(std::string_view text) {
  constexpr int kMaxDepth = 100;
  int depth = 0;
  bool in_text = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_text) {
      if (c == '\\') ++i;
      if (c == '"') in_text = false;
    } else if (c == '"') {
      in_text = true;
    } else if (c == '[' || c == '{') {
      if (++depth > kMaxDepth) return std::nullopt;
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  Json value = Json::parse(text, nullptr, false);
  if (value.is_discarded()) return std::nullopt;
  return value;
}

std::optional<std::string> read_file(const std::string& path, size_t limit) {
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return std::nullopt;
  std::ifstream file(path, std::ios::binary);
  if (!file) return std::nullopt;
  std::string text;
  char buffer[1 << 16];
  while (file.read(buffer, sizeof buffer) || file.gcount() > 0) {
    text.append(buffer, static_cast<size_t>(file.gcount()));
    if (text.size() > limit) return std::nullopt;
  }
  return text;
}

Resources::Resources(std::string folder) : folder_(std::move(folder)) {
  if (folder_.empty()) return;
  std::error_code error;
  if (!fs::is_directory(folder_, error)) throw DataError(folder_ + ": expected a folder for --data, found none");
  if (!fs::is_directory(folder_ + "/engines", error) && !fs::is_directory(folder_ + "/data", error)) {
    throw DataError(folder_ + ": expected engines/ or data/ in the folder for --data, found neither");
  }
}

std::string Resources::text(std::string_view name) const {
  if (!folder_.empty()) {
    if (auto text = read_file(folder_ + "/" + std::string(name))) return *text;
  }
  for (size_t i = 0; i < kEmbeddedFileCount; ++i)
    if (name == kEmbeddedFiles[i].name) return std::string(kEmbeddedFiles[i].begin, kEmbeddedFiles[i].size);
  throw DataError("there is no data file " + std::string(name));
}

Json Resources::json(std::string_view name) const {
  try {
    return Json::parse(text(name), nullptr, true, true);
  } catch (const Json::exception& error) {
    throw DataError(std::string(name) + ": " + error.what());
  }
}

std::vector<std::string> Resources::list(std::string_view prefix) const {
  std::vector<std::string> names;
  for (size_t i = 0; i < kEmbeddedFileCount; ++i) {
    const std::string_view name = kEmbeddedFiles[i].name;
    if (name.substr(0, prefix.size()) == prefix) names.emplace_back(name);
  }
  std::error_code error;
  if (!folder_.empty() && fs::is_directory(folder_ + "/" + std::string(prefix), error))
    for (const auto& entry : fs::directory_iterator(folder_ + "/" + std::string(prefix), error))
      if (entry.path().extension() == ".json") names.push_back(std::string(prefix) + entry.path().filename().string());
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

}  // namespace kda::doctor
