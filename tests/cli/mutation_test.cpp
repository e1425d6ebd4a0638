// Thousands of damaged replay files, the same ones each time: every one ends with an answer. Sanitizers watch.
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "cli/case_editor.h"
#include "cli/context.h"
#include "cli/program.h"
#include "cli/replay/attempt.h"

namespace kda::cli::testing {
namespace {

using replay::Attempt;
using Random = std::mt19937_64;

size_t below(Random& random, size_t limit) { return limit == 0 ? 0 : random() % limit; }

const int64_t kOddNumbers[] = {-1, -2, 0, 1, 2, 7, 63, 64, 65, 1000, INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN};

// One change that keeps the file a safetensors file: an index, a shape, a dtype, a name, a key, a value.
void change_case(EditableCase& edited, Random& random) {
  auto it = edited.tensors.begin();
  std::advance(it, static_cast<std::ptrdiff_t>(below(random, edited.tensors.size())));
  EditableTensor& tensor = it->second;
  switch (below(random, 8)) {
    case 0:
    case 1:
    case 2: {  // index lists, most of the time: what the library does with bad values
      for (int tries = 0; tries < 20; ++tries) {
        auto list = edited.tensors.begin();
        std::advance(list, static_cast<std::ptrdiff_t>(below(random, edited.tensors.size())));
        const bool is_index = list->second.type == io::TensorType::kI32 || list->second.type == io::TensorType::kI64;
        if (!is_index || list->second.index_count() == 0) continue;
        const int64_t value = below(random, 2) == 0 ? kOddNumbers[below(random, std::size(kOddNumbers))]
                                                    : static_cast<int64_t>(below(random, 10)) - 2;
        list->second.set_index(below(random, list->second.index_count()), value);
        break;
      }
      break;
    }
    case 3:
      if (!tensor.shape.empty()) std::swap(tensor.shape.front(), tensor.shape.back());
      break;
    case 4:
      if (below(random, 2) == 0) {
        tensor.shape.insert(tensor.shape.begin(), 1);
      } else {
        tensor.shape = {static_cast<int64_t>(tensor.index_count())};
      }
      break;
    case 5: {
      const io::TensorType two[] = {io::TensorType::kF16, io::TensorType::kBF16, io::TensorType::kI16};
      const io::TensorType four[] = {io::TensorType::kF32, io::TensorType::kI32, io::TensorType::kU32};
      if (io::size_of(tensor.type) == 2) tensor.type = two[below(random, 3)];
      if (io::size_of(tensor.type) == 4) tensor.type = four[below(random, 3)];
      break;
    }
    case 6:
      if (below(random, 2) == 0 || edited.tensors.size() < 2) {
        edited.tensors.erase(it);
      } else {
        auto other = edited.tensors.begin();
        std::advance(other, static_cast<std::ptrdiff_t>(below(random, edited.tensors.size())));
        std::swap(it->second, other->second);
      }
      break;
    default: {
      const char* keys[] = {"kda.op",          "kda.gate",       "kda.beta",        "kda.scale",
                            "kda.lower_bound", "kda.null_slot0", "kda.single_root", "kda.state_layout",
                            "kda.qk_l2norm",   "kda.plan",       "kda.numerics"};
      const char* values[] = {"verify_pending",
                              "commit",
                              "move",
                              "conv_commit",
                              "conv_verify",
                              "decode",
                              "bounded",
                              "precomputed",
                              "none",
                              "1",
                              "0",
                              "-1e300",
                              "kv",
                              "fast",
                              "",
                              R"({"problem":{"max_nodes":64,"heads":2147483647,"max_rows":9223372036854775807}})"};
      edited.metadata[keys[below(random, std::size(keys))]] = values[below(random, std::size(values))];
    }
  }
}

// Damage to the bytes themselves, mostly in the header.
void damage_bytes(std::string& bytes, Random& random) {
  uint64_t header = 0;
  std::memcpy(&header, bytes.data(), 8);
  const size_t zone = below(random, 8) == 0 ? bytes.size() : std::min<size_t>(8 + header, bytes.size());
  const char interesting[] = "{}[]\",:0123456789-eE.\\\x00\xff\x7f u";
  switch (below(random, 4)) {
    case 0:
      bytes[below(random, zone)] = static_cast<char>(random());
      break;
    case 1:
      bytes[below(random, zone)] = interesting[below(random, sizeof interesting - 1)];
      break;
    case 2:
      bytes.resize(below(random, bytes.size()));
      break;
    default: {  // a piece of the header over another
      const size_t length = below(random, 40), from = below(random, zone), to = below(random, zone);
      const std::string piece = bytes.substr(from, std::min(length, bytes.size() - to));
      bytes.replace(to, piece.size(), piece);
    }
  }
}

TEST(Mutation, EveryDamagedCaseEndsWithAnAnswer) {
  const auto context = open_context(1, "", false);
  ASSERT_TRUE(context) << context.error();
  constexpr int kPerFile = 150;
  std::map<Attempt, int> answers;
  Random random(20260101);
  for (const std::string& path : files_in(KDA_TEST_DATA "/own")) {
    const EditableCase original = EditableCase::read(path);
    for (int i = 0; i < kPerFile; ++i) {
      EditableCase edited = original;
      for (size_t changes = 1 + below(random, 3); changes > 0 && !edited.tensors.empty(); --changes) {
        change_case(edited, random);
      }
      std::string bytes = edited.bytes();
      if (below(random, 2) == 0) damage_bytes(bytes, random);
      // Exactly sized heap memory, so that a read beyond the end shows.
      const std::vector<char> memory(bytes.begin(), bytes.end());
      ++answers[replay::attempt(std::as_bytes(std::span(memory)), context->get())];
    }
  }
  // The mutations reach every stage: reader, case, plan, call and judge.
  for (const Attempt stage : {Attempt::kNotSafetensors, Attempt::kNotACase, Attempt::kNotPlanned, Attempt::kNotRun,
                              Attempt::kFailed, Attempt::kPassed}) {
    EXPECT_GE(answers[stage], 5) << "stage " << static_cast<int>(stage);
  }
}

TEST(Mutation, UndamagedCasesPass) {
  const auto context = open_context(1, "", false);
  ASSERT_TRUE(context) << context.error();
  for (const std::string& path : files_in(KDA_TEST_DATA "/own")) {
    const std::string bytes = EditableCase::read(path).bytes();
    EXPECT_EQ(replay::attempt(std::as_bytes(std::span(bytes)), context->get()), Attempt::kPassed) << path;
  }
}

}  // namespace
}  // namespace kda::cli::testing
