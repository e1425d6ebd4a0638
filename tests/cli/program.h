// Runs the kda program as a user does and collects what it printed.
#pragma once

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "io/bytes.h"

extern char** environ;

namespace kda::cli::testing {

using io::testing::ScratchDirectory;

struct ProgramResult {
  int exit_code = -1;  // -1 = it ended by a signal or did not start
  std::string out, err;
};

inline std::string contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// stdout_path: where stdout goes instead of being collected, e.g. /dev/full.
inline ProgramResult run_kda(const std::vector<std::string>& arguments, const std::string& stdout_path = {}) {
  ScratchDirectory scratch;
  const std::string out = stdout_path.empty() ? scratch.file("out") : stdout_path;
  const std::string err = scratch.file("err");
  const std::string program = KDA_BINARY_DIR "/cli/kda";
  std::vector<char*> argv = {const_cast<char*>(program.c_str())};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, 1, out.c_str(), O_WRONLY | O_CREAT, 0600);
  posix_spawn_file_actions_addopen(&actions, 2, err.c_str(), O_WRONLY | O_CREAT, 0600);
  ProgramResult result;
  pid_t child = 0;
  int status = 0;
  if (posix_spawn(&child, program.c_str(), &actions, nullptr, argv.data(), environ) == 0 &&
      ::waitpid(child, &status, 0) == child && WIFEXITED(status)) {
    result.exit_code = WEXITSTATUS(status);
  }
  posix_spawn_file_actions_destroy(&actions);
  if (stdout_path.empty()) result.out = contents(out);
  result.err = contents(err);
  return result;
}

inline std::vector<std::string> files_in(const std::string& directory) {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) files.push_back(entry.path().string());
  std::sort(files.begin(), files.end());
  return files;
}

// Every replay case of the repository: the given ones and the own ones.
inline std::vector<std::string> case_files() {
  std::vector<std::string> files = files_in(KDA_TEST_DATA "/cases");
  for (const std::string& file : files_in(KDA_TEST_DATA "/own")) files.push_back(file);
  return files;
}

}  // namespace kda::cli::testing
