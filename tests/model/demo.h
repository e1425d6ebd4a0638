// The built-in model in tests: models/demo beside the sources, or KDA_MODEL_DIR.
#pragma once

#include <cstdlib>
#include <string>

namespace kda::model {

inline std::string demo_directory() {
  const char* named = std::getenv("KDA_MODEL_DIR");
  return named != nullptr && *named != '\0' ? named : std::string(KDA_SOURCE_DIR) + "/models/demo";
}

}  // namespace kda::model
