// Questions of the tests from their JSON form.
#pragma once

#include <fstream>
#include <sstream>
#include <string>

#include "doctor/doctor.h"

namespace kda::doctor {

inline const Doctor& the_doctor() {
  static const Doctor doctor{Resources{}};
  return doctor;
}

// {"command", "gpu", and optionally "config", "version", "installed", "missing", "cuda"}
inline Question question_of(const Json& row, const std::string& scratch_name) {
  Question q;
  q.words = {row.at("command").get<std::string>()};
  q.gpu = row.at("gpu").get<std::string>();
  q.engine_version = row.value("version", "");
  q.cuda_version = row.value("cuda", "");
  q.installed = row.value("installed", std::vector<std::string>{});
  q.missing = row.value("missing", std::vector<std::string>{});
  if (row.contains("config")) {
    q.model_config = std::string(KDA_BINARY_DIR) + "/doctor_" + scratch_name + ".json";
    std::ofstream(q.model_config) << row["config"].dump();
  }
  return q;
}

inline Json read_json(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return Json::parse(text.str());
}

inline const PhaseReport* phase_of(const Report& report, const std::string& name) {
  for (const PhaseReport& phase : report.phases)
    if (phase.phase == name) return &phase;
  return nullptr;
}

}  // namespace kda::doctor
