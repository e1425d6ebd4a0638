// A checkpoint directory: which file holds which tensor, from the index that Hugging Face writes.
#include <sys/stat.h>

#include <nlohmann/json.hpp>

#include "io/safetensors.h"

namespace kda::io {
namespace {

using Json = nlohmann::json;

bool exists(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0;
}

// An index names files beside itself and nothing else: it may not lead out of the directory.
bool is_plain_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos &&
         name.find('\0') == std::string::npos;
}

// {"weight_map": {tensor: file}}; duplicate keys are refused where they matter, in the map.
Result<std::map<std::string, std::string>> read_weight_map(const std::string& path) {
  const auto fail = [&](const std::string& text) { return Error{printable(path) + ": " + text}; };
  const Result<std::string> text = read_file(path, kMaxHeaderBytes);
  if (!text) return Error{text.error()};
  bool duplicate = false;
  std::map<std::string, int> seen;
  // An index is two levels deep; refusing deeper ones keeps recursion out of everything done with the value.
  bool too_deep = false;
  const auto watch = [&](int depth, Json::parse_event_t event, Json& parsed) {
    too_deep |= depth > 8;
    if (event == Json::parse_event_t::object_start) seen.clear();
    if (event == Json::parse_event_t::key && depth == 2 && ++seen[parsed.get<std::string>()] > 1) duplicate = true;
    return !too_deep;
  };
  const Json json = Json::parse(*text, watch, /*allow_exceptions=*/false);
  if (too_deep || json.is_discarded() || !json.is_object()) return fail("expected a JSON object, found something else");
  const auto map = json.find("weight_map");
  if (map == json.end() || !map->is_object()) return fail("expected the key 'weight_map' with an object, found none");
  if (duplicate) return fail("expected each tensor once in 'weight_map', found one given twice");
  std::map<std::string, std::string> files;
  for (const auto& [tensor, file] : map->items()) {
    if (!file.is_string() || !is_plain_name(file.get<std::string>())) {
      return fail("tensor '" + printable(tensor) + "': expected the name of a file beside the index, found " +
                  printable(file.dump(-1, ' ', true, Json::error_handler_t::replace)));
    }
    files.emplace(tensor, file.get<std::string>());
  }
  return files;
}

}  // namespace

Result<Checkpoint> Checkpoint::open(const std::string& directory, const std::string& name) {
  const std::string single = directory + "/" + name + ".safetensors";
  const std::string index = single + ".index.json";
  Checkpoint checkpoint;
  if (!exists(index)) {
    if (!exists(single)) {
      return Error{printable(directory) + ": expected " + name + ".safetensors or " + name +
                   ".safetensors.index.json, found neither"};
    }
    Result<SafetensorsFile> file = SafetensorsFile::open(single);
    if (!file) return Error{file.error()};
    checkpoint.path_ = single;
    checkpoint.files_.push_back(std::move(*file));
    for (const TensorInfo& tensor : checkpoint.files_.front().tensors()) {
      checkpoint.tensors_.emplace(tensor.name, &tensor);
    }
    return checkpoint;
  }
  const Result<std::map<std::string, std::string>> weight_map = read_weight_map(index);
  if (!weight_map) return Error{weight_map.error()};
  checkpoint.path_ = index;
  std::map<std::string, size_t> opened;
  for (const auto& [tensor, file_name] : *weight_map) {
    const auto [it, is_new] = opened.emplace(file_name, checkpoint.files_.size());
    if (is_new) {
      Result<SafetensorsFile> file = SafetensorsFile::open(directory + "/" + file_name);
      if (!file) return Error{file.error()};
      checkpoint.files_.push_back(std::move(*file));
    }
    const Result<const TensorInfo*> found = checkpoint.files_[it->second].require(tensor);
    if (!found) return Error{found.error() + " (named by " + printable(index) + ")"};
    checkpoint.tensors_.emplace(tensor, *found);
  }
  return checkpoint;
}

}  // namespace kda::io
