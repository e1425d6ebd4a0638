// verify: the nodes of a draft tree from the row's committed state, each from its parent's state; before that, where
// tips are pending, the last round's commit.
#include "cpu/commit_path.h"
#include "cpu/draft.h"
#include "cpu/kernels.h"
#include "cpu/tree_walk.h"

namespace kda {
namespace cpu {
namespace {

class VerifyUnit {
 public:
  VerifyUnit(const Problem& problem, const VerifyLaunch& launch, const Execution& execution, Lane& lane,
             const Unit& unit)
      : problem_(problem),
        launch_(launch),
        execution_(execution),
        functions_(target_functions(execution.cpu_target)),
        lane_(lane),
        unit_(unit),
        row_(resolve_row(problem, launch.rows, launch.state, launch.dst, unit.row)),
        padded_(lane.layout().key_padded) {}

  void run() {
    HeadTokens tokens(problem_, functions_, launch_.tokens, unit_.head, lane_);
    RecordPath pending;
    const std::byte* pending_record = nullptr;
    bool skipped = row_.null;
    if (!skipped) {
      const uint32_t bad = read_pending(launch_.pending, launch_.records, kRecordMagic, record_layout(problem_),
                                        problem_.max_nodes, unit_.row, pending_record, pending);
      report_device_status(execution_.device_status, bad);
      skipped = bad != 0;
    }
    if (skipped) {
      for (int64_t t = row_.begin; t < row_.end; ++t) tokens.store_zero_out(t, unit_.first_row, unit_.rows);
      return;
    }
    if (row_.source >= 0) source_ = stored_head(problem_, launch_.state, 0, row_.source, unit_.head);
    committed_in_lane_ = pending.length > 0;
    if (launch_.pending.present()) apply_pending(pending, pending_record);
    run_nodes(tokens);
  }

 private:
  // Leaves the committed state in the lane where there was anything to commit.
  void apply_pending(const RecordPath& path, const std::byte* record) {
    StoredState destination;
    if (row_.destination >= 0) destination = stored_head(problem_, launch_.dst, 0, row_.destination, unit_.head);
    if (path.length == 0) {
      if (launch_.rows.dst_slots.present() && destination.present() && !(row_.in_place && source_.present())) {
        copy_rows(problem_, functions_, source_, unit_.first_row, unit_.rows, destination);
      }
      return;
    }
    const CommitUnit u{problem_,
                       functions_,
                       lane_,
                       unit_,
                       unit_.row,
                       0,
                       source_,
                       destination,
                       path,
                       record,
                       launch_.pending_snapshots,
                       launch_.state};
    prepare_path(u);
    for_tiles(lane_.layout(), unit_.rows, [&](int64_t first, int64_t rows) {
      const StateRows result = head_rows(first);
      commit_tile(u, first, rows, &result);
    });
  }

  void run_nodes(HeadTokens& tokens) {
    const int nodes = static_cast<int>(row_.length());
    int16_t parents[kMaxDraftNodes];
    read_parents(problem_, launch_.draft, row_, parents);
    record_row_ = launch_.record_rows.present() ? launch_.record_rows.at(unit_.row) : unit_.row;
    if (launch_.records.present() && record_row_ >= 0) {
      record_ = launch_.records.base + record_row_ * launch_.records.row_stride;
      if (unit_.head == 0 && unit_.first_part) {
        write_record_header(record_, kRecordMagic, record_layout(problem_), parents, nodes);
      }
    }
    for (int node = 0; node < nodes; ++node) {
      const NormFactor key_rnorm = tokens.prepare(row_.begin + node, node);
      if (record_ != nullptr && unit_.first_part) record_inputs(tokens, node, key_rnorm);
    }
    const bool keep_all = launch_.node_states != nullptr || launch_.node_slots.present();
    const TreeWalk walk = walk_tree(parents, nodes, keep_all);
    for_tiles(lane_.layout(), unit_.rows, [&](int64_t first, int64_t rows) { run_tile(walk, keep_all, first, rows); });
    for (int node = 0; node < nodes; ++node) {
      tokens.store_out(row_.begin + node, node, unit_.first_row, unit_.rows);
      if (record_ != nullptr) record_correction(node);
    }
  }

  void run_tile(const TreeWalk& walk, bool keep_all, int64_t first, int64_t rows) {
    const StateRows committed = committed_rows(first, rows);
    const auto tile = [&](int index) {
      StateRows t = float_rows(lane_.tile(index), padded_);
      t.dtype = path_state(problem_);
      return t;
    };
    StepArgs step{.first_row = unit_.first_row + first, .rows = rows, .key_padded = padded_};
    for (int i = 0; i < walk.count; ++i) {
      const TreeStep& s = walk.steps[i];
      step.source = s.source == kCommittedState ? committed : tile(s.source);
      step.update = s.update < 0 ? nullptr : &lane_.token(s.update);
      step.next = nullptr;
      if (s.update >= 0 && keep_all && path_state(problem_) != DType::fp32) {
        // A node's stored state is rounded once, to its own dtype, not by way of the pool's.
        step.target = float_rows(lane_.unrounded_tile(), padded_);
        functions_.step(step);
        store_node(s.update, step.target, first, rows);
      }
      step.next = s.next < 0 ? nullptr : &lane_.token(s.next);
      if (s.update >= 0) step.target = tile(s.target);
      functions_.step(step);
      if (s.update >= 0 && keep_all && path_state(problem_) == DType::fp32)
        store_node(s.update, step.target, first, rows);
    }
  }

  // The unit's part of the lane's head state.
  StateRows head_rows(int64_t first) const {
    StateRows r = float_rows(lane_.head_state() + first * padded_, padded_);
    r.dtype = path_state(problem_);
    return r;
  }

  StateRows committed_rows(int64_t first, int64_t rows) const {
    const StateRows copy = head_rows(first);
    if (committed_in_lane_) return copy;
    if (!source_.present()) return zero_rows(lane_);
    if (steps_in_place(problem_, source_)) return rows_in_place(problem_, source_, unit_.first_row + first);
    load_rows(problem_, functions_, source_, unit_.first_row + first, rows, copy);
    return copy;
  }

  void store_node(int node, const StateRows& state, int64_t first, int64_t rows) const {
    const int64_t head_row = unit_.first_row + first;
    if (launch_.node_states != nullptr && record_row_ >= 0) {
      const int64_t element = record_row_ * launch_.node_states_row_stride + node * launch_.node_states_node_stride +
                              unit_.head * problem_.value_dim * problem_.key_dim;
      store_rows(problem_, functions_, state, head_row, rows,
                 {.data = launch_.node_states + element * size_of(launch_.node_states_dtype),
                  .dtype = launch_.node_states_dtype});
    }
    if (launch_.node_slots.present()) {
      const int64_t slot = launch_.node_slots.at(unit_.row, node);
      if (!skipped_slot(problem_, slot, launch_.node_pool, launch_.state)) {
        store_rows(problem_, functions_, state, head_row, rows,
                   stored_head(problem_, launch_.node_pool, 0, slot, unit_.head));
      }
    }
  }

  RecordNode record_node(const RecordLayout& layout, int node) const {
    return {layout, record_ + layout.nodes_begin + node * layout.node_bytes};
  }

  void record_inputs(const HeadTokens& tokens, int node, NormFactor key_rnorm) const {
    const RecordLayout layout = record_layout(problem_);
    const RecordNode to = record_node(layout, node);
    const bool half = has_half_decay(problem_);
    std::byte* decay = to.decay(unit_.head, problem_.key_dim, half);
    if (half) {
      functions_.store_log_decay(lane_.token(node).decay, problem_.key_dim, decay);
    } else {
      std::memcpy(decay, lane_.token(node).decay, problem_.key_dim * sizeof(float));
    }
    if (unit_.head % problem_.value_heads_per_head() != 0) return;
    const int64_t head = unit_.head / problem_.value_heads_per_head(),
                  key_bytes = problem_.key_dim * size_of(problem_.io);
    std::memcpy(to.key(head, key_bytes), tokens.key(row_.begin + node), key_bytes);
    *to.key_rnorm(head) = key_rnorm;
  }

  void record_correction(int node) const {
    const RecordLayout layout = record_layout(problem_);
    std::memcpy(record_node(layout, node).correction(unit_.head, problem_.value_dim) + unit_.first_row,
                lane_.token(node).correction + unit_.first_row, unit_.rows * sizeof(float));
  }

  const Problem& problem_;
  const VerifyLaunch& launch_;
  const Execution& execution_;
  const TargetFunctions& functions_;
  Lane& lane_;
  const Unit& unit_;
  const Row row_;
  const int64_t padded_;
  StoredState source_;  // absent: zeros
  bool committed_in_lane_ = false;
  int64_t record_row_ = -1;
  std::byte* record_ = nullptr;
};

}  // namespace
}  // namespace cpu

Status cpu_verify_exact(const Problem& problem, const VerifyLaunch& launch, const Execution& execution) {
  const cpu::UnitSplit split = cpu::split_units(problem, launch.rows.count, cpu::thread_count(execution));
  cpu::run_pieces(problem, execution, split.count(), [&](cpu::Lane& lane, int64_t piece) {
    const cpu::Unit unit = cpu::unit_of(split, piece);
    cpu::VerifyUnit(problem, launch, execution, lane, unit).run();
  });
  return KDA_OK;
}

Status cpu_verify_pending_exact(const Problem& problem, const VerifyLaunch& launch, const Execution& execution) {
  return cpu_verify_exact(problem, launch, execution);
}

}  // namespace kda
