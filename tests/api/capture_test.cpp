// Captured calls, replayed by the kda program on the same backend: the same bits.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "api/world.h"

namespace kda_test {
namespace {

namespace fs = std::filesystem;

const std::string kProgram = KDA_BINARY_DIR "/cli/kda";

struct Answer {
  int exit;
  std::string text;  // without spaces and newlines
};

Answer replay(const std::string& file, const char* backend) {
  const std::string command = kProgram + " replay --json --backend " + backend + " '" + file + "' 2>&1";
  std::FILE* pipe = popen(command.c_str(), "r");
  std::string text;
  for (int c = std::fgetc(pipe); c != EOF; c = std::fgetc(pipe)) {
    if (c != ' ' && c != '\n') text += static_cast<char>(c);
  }
  return {pclose(pipe), text};
}

class CaptureTest : public testing::TestWithParam<int32_t> {
 protected:
  void SetUp() override {
    if (!fs::exists(kProgram)) GTEST_SKIP() << kProgram << " is not built";
    directory_ = testing::TempDir() + "kda_capture_" + std::to_string(getpid());
    fs::remove_all(directory_);
    setenv("KDA_CAPTURE", directory_.c_str(), 1);
    setenv("KDA_CAPTURE_CALLS", "100", 1);
  }
  void TearDown() override {
    unsetenv("KDA_CAPTURE");
    unsetenv("KDA_CAPTURE_CALLS");
    fs::remove_all(directory_);
  }
  std::vector<std::string> files() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(directory_)) names.push_back(entry.path().string());
    std::sort(names.begin(), names.end());
    return names;
  }
  const char* backend() const { return GetParam() == KDA_BACKEND_CPU ? "cpu" : "reference"; }
  kda_problem problem() const {
    kda_problem p = World::default_problem();
    p.backend = GetParam();
    return p;
  }
  // Every captured file replays to the same bits.
  void expect_same_bits() const {
    for (const std::string& file : files()) {
      const Answer answer = replay(file, backend());
      EXPECT_EQ(answer.exit, 0) << file << "\n" << answer.text;
      EXPECT_EQ(answer.text.find("\"bits_equal\":false"), std::string::npos) << file << "\n" << answer.text;
      EXPECT_NE(answer.text.find("\"bits_equal\":true"), std::string::npos) << file << "\n" << answer.text;
    }
  }
  std::string directory_;
};

void make_every_call(World& w) {
  const List parents{-1, 0, 0, -1, 0, 1, 0, -1, -1, -1, -1, -1}, to{0, 2, 3}, same{5, 5, 5}, no_entries{-1, 1, -1};
  std::vector<uint8_t> flags{1, 0, 1};
  const kda::Tensor has_state(flags.data(), kda::Element::uint8, {3});
  w.plan.extend(w.extend_args(), &w.resources);
  auto extend = w.extend_args();
  extend.rows.dst_slots = to, extend.rows.dst_state = w.other_pool, extend.rows.has_state = has_state;
  extend.rows.slots = same;
  w.plan.extend(extend, &w.resources);
  extend.rows.slots = nullptr, extend.rows.state = nullptr, extend.snapshots = {};
  w.plan.extend(extend, &w.resources);
  auto decode = w.decode_args();
  decode.rows.slots = no_entries;
  w.plan.decode(decode, &w.resources);
  auto verify = w.verify_args();
  verify.parents = parents;
  w.plan.verify(verify, &w.resources);
  auto pending = w.pending_args();
  pending.parents = parents;
  w.plan.verify(pending, &w.resources);
  w.plan.commit(w.commit_args(), &w.resources);
  w.plan.move(w.move_args(), &w.resources);
  auto move = w.move_args();
  move.destination = w.other_pool;
  w.plan.move(move, &w.resources);
  auto conv = w.conv_args();
  w.plan.conv_extend(conv, &w.resources);
  conv.records = w.conv_records, conv.record_rows = w.record_rows, conv.parents = parents;
  w.plan.conv_verify(conv, &w.resources);
  conv.pending_tips = w.tips, conv.pending_record_rows = w.record_rows, conv.record_rows = w.pending_record_rows;
  conv.parents = nullptr;
  w.tips[0] = 1;
  w.plan.conv_verify(conv, &w.resources);
  w.plan.conv_commit(w.conv_commit_args(), &w.resources);
  auto conv_move = w.move_args();
  conv_move.source = w.conv_state;
  w.plan.conv_move(conv_move, &w.resources);
}

TEST_P(CaptureTest, EveryOperationReplaysBitForBit) {
  for (int32_t null_slot0 : {0, 1}) {
    kda_problem p = problem();
    p.null_slot0 = null_slot0;
    World world(p);
    make_every_call(world);
  }
  EXPECT_GE(files().size(), 28u);
  expect_same_bits();
}

TEST_P(CaptureTest, OnlyTheFirstCallsAndOnlyTouchedSlots) {
  setenv("KDA_CAPTURE_CALLS", "2", 1);
  World world(problem());
  for (int i = 0; i < 5; ++i) world.plan.decode(world.decode_args(), &world.resources);
  ASSERT_EQ(files().size(), 2u);
  std::ifstream file(files()[0], std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  EXPECT_NE(text.find("\"state\": {\"dtype\": \"F32\", \"shape\": [4, 4, 6, 8]"), std::string::npos)
      << "three slots of ten, and one that must stay NaN";
}

TEST_P(CaptureTest, AChangedFileDoesNotReplay) {
  World world(problem());
  world.plan.decode(world.decode_args(), &world.resources);
  const std::string name = files().at(0);
  std::fstream file(name, std::ios::binary | std::ios::in | std::ios::out);
  uint64_t header = 0;
  file.read(reinterpret_cast<char*>(&header), 8);
  file.seekp(static_cast<std::streamoff>(8 + header));  // the first value of q
  const float other = 100.0f;
  file.write(reinterpret_cast<const char*>(&other), 4);
  file.close();
  const Answer answer = replay(name, backend());
  EXPECT_NE(answer.exit, 0);
  EXPECT_NE(answer.text.find("\"bits_equal\":false"), std::string::npos) << answer.text;
}

INSTANTIATE_TEST_SUITE_P(Backends, CaptureTest, testing::Values(KDA_BACKEND_REFERENCE, KDA_BACKEND_CPU));

}  // namespace
}  // namespace kda_test
