// The built-in model for tests: models/demo beside the sources, or KDA_MODEL_DIR.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "io/safetensors.h"

namespace kda::speculation {

inline std::string demo_directory() {
  const char* named = std::getenv("KDA_MODEL_DIR");
  return named != nullptr && *named != '\0' ? named : std::string(KDA_SOURCE_DIR) + "/models/demo";
}

inline bool have_demo_model() { return std::filesystem::exists(demo_directory() + "/golden.safetensors"); }

template <class T>
std::vector<T> values_of(const io::SafetensorsFile& file, const std::string& name) {
  const io::TensorInfo* tensor = file.find(name);
  if (tensor == nullptr) {
    ADD_FAILURE() << "no tensor " << name;
    return {};
  }
  std::vector<T> values(tensor->data.size() / sizeof(T));
  std::memcpy(values.data(), tensor->data.data(), values.size() * sizeof(T));
  return values;
}

#define KDA_NEEDS_DEMO_MODEL() \
  if (!have_demo_model()) GTEST_SKIP() << "no model in " << demo_directory()

}  // namespace kda::speculation
