#include "cpu/commit_path.h"

namespace kda::cpu {

void prepare_path(const CommitUnit& u) {
  const Problem& p = u.problem;
  const RecordLayout layout = record_layout(p);
  const int64_t head = u.unit.head / p.value_heads_per_head(), padded = u.lane.layout().key_padded;
  for (int i = 0; i < u.path.length; ++i) {
    PreparedToken& token = u.lane.reset_token(i);
    // Records are read only; RecordNode serves their writer too.
    const RecordNode node{layout,
                          const_cast<std::byte*>(u.record) + layout.nodes_begin + u.path.nodes[i] * layout.node_bytes};
    std::memcpy(token.correction, node.correction(u.unit.head, p.value_dim), p.value_dim * sizeof(float));
    const bool half = has_half_decay(p);
    const std::byte* decay = node.decay(u.unit.head, p.key_dim, half);
    if (half) {
      u.functions.load_log_decay(decay, p.key_dim, padded, token.decay);
    } else {
      std::memcpy(token.decay, decay, p.key_dim * sizeof(float));
    }
    u.functions.widen(node.key(head, p.key_dim * size_of(p.io)), p.io, p.key_dim, token.key);
    for (int64_t k = p.key_dim; k < padded; ++k) token.key[k] = token.decay[k] = 0.0f;
    u.functions.normalise_key(token.key, padded, *node.key_rnorm(head));
  }
}

void commit_tile(const CommitUnit& u, int64_t first, int64_t rows, const StateRows* result) {
  const Problem& p = u.problem;
  const int64_t head_row = u.unit.first_row + first, padded = u.lane.layout().key_padded;
  const StateRows unrounded = float_rows(u.lane.unrounded_tile(), padded);
  StateRows working = float_rows(u.lane.tile(0), padded);
  working.dtype = path_state(p);
  if (result != nullptr) working = *result;

  StateRows state = zero_rows(u.lane);
  if (u.source.present()) {
    if (steps_in_place(p, u.source)) {
      state = rows_in_place(p, u.source, head_row);
    } else {
      load_rows(p, u.functions, u.source, head_row, rows, working);
      state = working;
    }
  }
  StepArgs step{.first_row = head_row, .rows = rows, .key_padded = padded};
  for (int i = 0; i < u.path.length; ++i) {
    const int node = u.path.nodes[i];
    const bool last = i + 1 == u.path.length;
    const bool snapshot = next_snapshot(u.snapshots, u.row, node) == node;
    const bool stores_final = last && u.destination.present();
    step.source = state;
    step.update = &u.lane.token(i);
    if (stores_final && !snapshot && result == nullptr && steps_in_place(p, u.destination)) {
      step.target = rows_in_place(p, u.destination, head_row);
      u.functions.step(step);
      return;
    }
    // What is stored is rounded once, to its own dtype; what the next node starts from, to the pool's. Both are
    // computed before anything is stored: the destination may be where the source is.
    const bool rounds = path_state(p) != DType::fp32;
    const bool stores = snapshot || stores_final;
    StateRows exact = working;
    if (stores && rounds) {
      step.target = exact = unrounded;
      u.functions.step(step);
    }
    if (!(stores && rounds && last && result == nullptr)) {
      step.target = working;
      u.functions.step(step);
    }
    if (snapshot) {
      for_snapshots(p, u.snapshots, u.own_pool, u.row, node, [&](int64_t slot) {
        store_rows(p, u.functions, exact, head_row, rows, stored_head(p, u.snapshots.pool, u.layer, slot, u.unit.head));
      });
    }
    if (stores_final) store_rows(p, u.functions, exact, head_row, rows, u.destination);
    state = working;
  }
}

}  // namespace kda::cpu
