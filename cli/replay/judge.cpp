#include "cli/replay/judge.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <utility>

#include "cli/replay/limits.h"

namespace kda::cli::replay {
namespace {

using io::TensorInfo;
using io::TensorType;

// Below this an element counts as zero: float32 has no relative accuracy left near its smallest numbers.
constexpr double kTiny = 1e-30;

double relative(double squared_error, double squared_norm, int64_t count) {
  if (!std::isfinite(squared_error)) return std::numeric_limits<double>::infinity();
  const double floor = kTiny * std::sqrt(static_cast<double>(count));
  const double error = std::sqrt(squared_error);
  return error <= floor ? 0 : error / std::max(std::sqrt(squared_norm), floor);
}

bool same_bits(float x, float y) { return std::bit_cast<uint32_t>(x) == std::bit_cast<uint32_t>(y); }
bool same_number(float x, float y) { return same_bits(x, y) || (std::isnan(x) && std::isnan(y)); }

// Collects the errors of one tensor, unit by unit.
class Tally {
 public:
  Tally(std::string tensor, double limit) {
    verdict_.tensor = std::move(tensor);
    verdict_.limit = limit;
    verdict_.bits_equal = true;
  }

  void live(int64_t row, int64_t head, float actual, float expected) {
    Unit& unit = units_[{row, head}];
    const double error = std::isfinite(actual) ? static_cast<double>(actual) - static_cast<double>(expected)
                                               : std::numeric_limits<double>::infinity();
    unit.squared_error += error * error;
    unit.squared_norm += static_cast<double>(expected) * static_cast<double>(expected);
    ++unit.count;
    if (!same_bits(actual, expected)) verdict_.bits_equal = false;
    if (!std::isfinite(expected)) fault("the expectation is not finite", row, head);
  }

  // An element that had to stay as it was (or zero): `kept` says whether it did.
  void untouched(bool kept, const char* what, int64_t row, int64_t head) {
    ++verdict_.untouched;
    if (!kept) fault(what, row, head);
  }

  void fault(const char* what, int64_t row, int64_t head) {
    if (!verdict_.fault.empty()) return;
    verdict_.fault =
        std::string(what) + " (row " + std::to_string(row) + (head < 0 ? "" : ", head " + std::to_string(head)) + ")";
  }

  Verdict finish() {
    double squared_error = 0, squared_norm = 0;
    bool units_within = true;
    for (const auto& [key, unit] : units_) {
      const double error = relative(unit.squared_error, unit.squared_norm, unit.count);
      if (verdict_.worst_row < 0 || error > verdict_.worst_error) {
        verdict_.worst_error = error;
        verdict_.worst_row = key.first;
        verdict_.worst_head = key.second;
      }
      squared_error += unit.squared_error;
      squared_norm += unit.squared_norm;
      verdict_.live += unit.count;
      units_within = units_within && error <= kUnitFactor * verdict_.limit;
    }
    verdict_.error = relative(squared_error, squared_norm, verdict_.live);
    verdict_.pass = verdict_.error <= verdict_.limit && units_within && verdict_.fault.empty();
    return verdict_;
  }

 private:
  struct Unit {
    double squared_error = 0, squared_norm = 0;
    int64_t count = 0;
  };
  std::map<std::pair<int64_t, int64_t>, Unit> units_;
  Verdict verdict_;
};

class Judge {
 public:
  Judge(const Case& replay, const PreparedPlan& prepared, std::string target, const Outputs& outputs)
      : case_(replay), prepared_(prepared), target_(std::move(target)), outputs_(outputs) {
    const TensorInfo* io = find(replay.is_conv() ? "x" : "q");
    const TensorInfo* pool = find(replay.pool_name());
    if (io != nullptr)
      inputs_.io = io->type;
    else if (replay.plan.io_dtype == KDA_FP32)
      inputs_.io = TensorType::kF32;
    if (pool != nullptr) inputs_.pool = pool->type;
    inputs_.numerics = prepared.numerics;
    inputs_.rounds_on_path =
        (replay.is_verify() && (replay.depth > 1 || replay.has("pending_tips"))) || replay.is_commit();
    inputs_.depth = replay.depth;
  }

  std::vector<Verdict> all() {
    std::vector<Verdict> verdicts;
    if (const TensorInfo* expected = find("expect.out")) verdicts.push_back(out(*expected));
    const std::string pool = std::string("expect.") + case_.pool_name();
    if (const TensorInfo* expected = find(pool)) {
      verdicts.push_back(pool_contents(*expected, outputs_.pool, *find(case_.pool_name())));
    }
    if (const TensorInfo* expected = find("expect.dst_state")) {
      verdicts.push_back(pool_contents(*expected, outputs_.dst_pool, *find("dst_state")));
    }
    if (const TensorInfo* expected = find("expect.snapshots")) verdicts.push_back(snapshots(*expected));
    if (const TensorInfo* expected = find("expect.records")) verdicts.push_back(records(*expected));
    return verdicts;
  }

 private:
  const TensorInfo* find(std::string_view name) const { return case_.file.find(name); }

  double pool_limit(TensorType destination) const {
    if (case_.is_move()) {
      const bool narrows = io::size_of(destination) < io::size_of(inputs_.pool);
      return narrows ? kMovedToBf16 : 0;
    }
    return case_.is_conv() ? 0 : state_limit(inputs_, destination);  // conv windows are copies of inputs
  }

  int64_t heads() const { return case_.is_conv() ? 1 : case_.value_heads; }
  int64_t head_name(int64_t head) const { return case_.is_conv() ? -1 : head; }

  Verdict out(const TensorInfo& expected_tensor) const {
    LimitInputs inputs = inputs_;
    if (case_.is_conv()) {  // no fast form, no state arithmetic
      inputs.numerics = KDA_EXACT;
      inputs.rounds_on_path = false;
    }
    Tally tally("out", out_limit(inputs));
    const std::vector<float> expected = widened(expected_tensor.data, expected_tensor.type);
    const std::vector<float> actual = widened(outputs_.out.bytes(), outputs_.out.type());
    const auto poison = widened(std::vector<std::byte>(4, std::byte{0xff}), outputs_.out.type()).front();
    const int64_t per_head = case_.is_conv() ? case_.channels : case_.value_dim;
    const auto token = [&](int64_t t, int64_t row, bool null) {
      for (int64_t i = t * heads() * per_head; i < (t + 1) * heads() * per_head; ++i) {
        const auto at = static_cast<size_t>(i);
        const int64_t head = head_name(i / per_head % heads());
        if (row < 0 || std::isnan(expected[at])) {
          tally.untouched(same_bits(actual[at], poison), "written outside the rows", row, head);
        } else if (null) {
          tally.untouched(actual[at] == 0 && expected[at] == 0, "not zero in a null row", row, head);
        } else {
          tally.live(row, head, actual[at], expected[at]);
        }
      }
    };
    int64_t t = 0;
    for (; t < case_.cu_seqlens.front(); ++t) token(t, -1, false);
    for (int64_t row = 0; row < case_.rows; ++row) {
      for (; t < case_.cu_seqlens[static_cast<size_t>(row) + 1]; ++t) token(t, row, case_.is_null_row(row));
    }
    for (; t < case_.tokens; ++t) token(t, -1, false);
    return tally.finish();
  }

  // A slot whose expectation is its input must keep every bit; so must single elements expected to be NaN.
  Verdict pool_contents(const TensorInfo& expected_tensor, const HostTensor& actual_tensor,
                        const TensorInfo& before) const {
    Tally tally(expected_tensor.name.substr(expected_tensor.name.find('.') + 1), pool_limit(actual_tensor.type()));
    const std::vector<float> expected = widened(expected_tensor.data, expected_tensor.type);
    const std::vector<float> actual = widened(actual_tensor.bytes(), actual_tensor.type());
    const std::vector<float> input = widened(before.data, before.type);
    const int64_t slots = before.shape[0];
    const int64_t per_slot = slots == 0 ? 0 : before.elements / slots;
    const int64_t per_head = std::max<int64_t>(per_slot / heads(), 1);
    for (int64_t slot = 0; slot < slots; ++slot) {
      const auto begin = static_cast<size_t>(slot * per_slot);
      const auto end = begin + static_cast<size_t>(per_slot);
      bool kept = true;
      for (size_t i = begin; i < end && kept; ++i) kept = same_number(expected[i], input[i]);
      for (size_t i = begin; i < end; ++i) {
        const int64_t head = head_name(static_cast<int64_t>(i - begin) / per_head);
        if (kept || std::isnan(expected[i])) {
          tally.untouched(same_bits(actual[i], input[i]), "changed though it should keep its bits", slot, head);
        } else {
          tally.live(slot, head, actual[i], expected[i]);
        }
      }
    }
    return tally.finish();
  }

  // Entry i of the list is slot i of an own pool, or slot snapshot_slots[i] of the state pool.
  Verdict snapshots(const TensorInfo& expected_tensor) const {
    const TensorInfo* slots_tensor = find("snapshot_slots");
    const HostTensor& pool = slots_tensor != nullptr ? outputs_.pool : outputs_.snapshots;
    Tally tally("snapshots", pool_limit(pool.type()));
    const std::vector<float> expected = widened(expected_tensor.data, expected_tensor.type);
    const std::vector<float> actual = widened(pool.bytes(), pool.type());
    const std::vector<int64_t> slots = slots_tensor != nullptr ? indices_of(*slots_tensor) : std::vector<int64_t>();
    const int64_t entries = expected_tensor.shape[0];
    const int64_t per_slot = entries == 0 ? 0 : expected_tensor.elements / entries;
    const int64_t per_head = std::max<int64_t>(per_slot / heads(), 1);
    for (int64_t entry = 0; entry < entries; ++entry) {
      const int64_t slot = slots_tensor != nullptr ? slots[static_cast<size_t>(entry)] : entry;
      if (slot < 0) continue;
      if (slot >= pool.shape()[0]) {
        tally.fault("the snapshot's slot is beyond the pool", entry, -1);
        continue;
      }
      for (int64_t i = 0; i < per_slot; ++i) {
        const int64_t head = head_name(i / per_head);
        const float wanted = expected[static_cast<size_t>(entry * per_slot + i)];
        const float found = actual[static_cast<size_t>(slot * per_slot + i)];
        if (std::isnan(wanted)) {
          tally.untouched(std::isnan(found), "stored though the entry should be skipped", entry, head);
        } else {
          tally.live(entry, head, found, wanted);
        }
      }
    }
    return tally.finish();
  }

  // Records are opaque and belong to one backend and target: there they repeat byte for byte.
  Verdict records(const TensorInfo& expected) const {
    Verdict verdict;
    verdict.tensor = "records";
    const bool elsewhere = (case_.backend >= 0 && case_.backend != prepared_.backend) ||
                           (!case_.target.empty() && !target_.empty() && case_.target != target_) ||
                           (case_.numerics >= 0 && case_.numerics != prepared_.numerics);
    if (elsewhere) {
      verdict.judged = false;
      verdict.pass = true;
      verdict.fault = "records are compared only on the backend, target and numerics that wrote them";
      return verdict;
    }
    const auto actual = outputs_.records.bytes();
    verdict.untouched = static_cast<int64_t>(actual.size());
    size_t differing = 0;
    for (size_t i = 0; i < actual.size(); ++i) differing += actual[i] != expected.data[i] ? 1 : 0;
    verdict.error = actual.empty() ? 0 : static_cast<double>(differing) / static_cast<double>(actual.size());
    verdict.bits_equal = verdict.pass = differing == 0;
    if (differing != 0) verdict.fault = std::to_string(differing) + " bytes differ";
    return verdict;
  }

  const Case& case_;
  const PreparedPlan& prepared_;
  std::string target_;
  const Outputs& outputs_;
  LimitInputs inputs_;
};

}  // namespace

std::vector<Verdict> judge(const Case& replay, const PreparedPlan& prepared, const std::string& target,
                           const Outputs& outputs) {
  return Judge(replay, prepared, target, outputs).all();
}

}  // namespace kda::cli::replay
