#include "plan/needs.h"

#include "plan/names.h"

namespace kda {
namespace {

// One need that is a set of values: met if the problem's value is in the kernel's mask.
struct MaskNeed {
  const char* what;
  unsigned asked;
  uint32_t served;
  const char* (*name)(unsigned);
  unsigned count;
  Status refusal;
};

template <class E>
const char* name_at(unsigned value) {
  return name_of(static_cast<E>(value));
}

template <class E>
MaskNeed mask_need(const char* what, E asked, uint32_t served, unsigned count, Status refusal) {
  return {what, static_cast<unsigned>(asked), served, &name_at<E>, count, refusal};
}

Status unmet(const MaskNeed& need, FixedText<>* reason) {
  *reason = FixedText<>("%s %s; serves", need.what, need.name(need.asked));
  for (unsigned value = 0; value < need.count; ++value) {
    if ((need.served >> value & 1) != 0) reason->add(" %s", need.name(value));
  }
  return need.refusal;
}

Status unmet_dims(const Needs& needs, const Problem& p, FixedText<>* reason) {
  struct Dim {
    const char* name;
    int value;
  };
  for (const Dim dim : {Dim{"key_dim", p.key_dim}, Dim{"value_dim", p.value_dim}}) {
    if (needs.equal_dims != 0 && dim.value != needs.equal_dims) {
      *reason = FixedText<>("%s %d; serves %d", dim.name, dim.value, needs.equal_dims);
      return KDA_E_DIMS;
    }
    if (dim.value < needs.min_dim || dim.value > needs.max_dim || dim.value % needs.dim_multiple != 0) {
      *reason = FixedText<>("%s %d; serves %d to %d", dim.name, dim.value, needs.min_dim, needs.max_dim);
      if (needs.dim_multiple > 1) reason->add(", multiples of %d", needs.dim_multiple);
      return KDA_E_DIMS;
    }
  }
  return KDA_OK;
}

Status unmet_machine(const KernelRow& row, const Capabilities& capabilities, FixedText<>* reason) {
  if (const char* missing = capabilities.missing(row.backend)) {
    *reason = FixedText<>("%s", missing);
    return KDA_E_BACKEND;
  }
  const Needs& needs = row.needs;
  if ((needs.min_gpu != 0 && capabilities.gpu < needs.min_gpu) ||
      (needs.max_gpu != 0 && capabilities.gpu > needs.max_gpu)) {
    *reason = FixedText<>("GPU sm_%d; serves sm_%d", capabilities.gpu, needs.min_gpu);
    if (needs.max_gpu != needs.min_gpu) {
      needs.max_gpu != 0 ? reason->add(" to sm_%d", needs.max_gpu) : reason->add(" and later");
    }
    return KDA_E_BACKEND;
  }
  return KDA_OK;
}

}  // namespace

Numerics numerics_of(const Problem& problem, Operation operation) {
  switch (operation) {
    case Operation::extend:
      return problem.extend_numerics;
    case Operation::verify:
    case Operation::verify_pending:
    case Operation::commit:
      return problem.verify_numerics;
    default:
      return Numerics::exact;
  }
}

Status first_unmet_need(const KernelRow& row, const Problem& problem, const Capabilities& capabilities,
                        FixedText<>* reason) {
  if (Status s = unmet_machine(row, capabilities, reason)) return s;
  const Needs& needs = row.needs;
  const MaskNeed io_need = mask_need("io", problem.io, needs.io_dtypes, 3, KDA_E_DTYPES);
  const MaskNeed numerics_need =
      mask_need("numerics", numerics_of(problem, row.operation), needs.numerics, 2, KDA_E_NUMERICS);
  const auto met = [](const MaskNeed& need) { return (need.served >> need.asked & 1) != 0; };
  if (!met(io_need)) return unmet(io_need, reason);
  if (is_conv(row.operation)) return KDA_OK;  // a convolution has no state, gate or head
  if (!met(numerics_need)) return unmet(numerics_need, reason);
  if (Status s = unmet_dims(needs, problem, reason)) return s;
  const MaskNeed masks[] = {
      mask_need("state", problem.state, needs.state_dtypes, 2, KDA_E_DTYPES),
      mask_need("state layout", problem.state_layout, needs.state_layouts, 2, KDA_E_FORM),
      mask_need("gate", problem.gate, needs.gates, 3, KDA_E_FORM),
      mask_need("beta", problem.beta, needs.betas, 3, KDA_E_FORM),
  };
  for (const MaskNeed& need : masks) {
    if (!met(need)) return unmet(need, reason);
  }
  if (problem.max_nodes > needs.max_nodes) {
    *reason = FixedText<>("max_nodes %d; serves up to %d", problem.max_nodes, needs.max_nodes);
    return KDA_E_MAXIMA;
  }
  if (problem.max_tokens < needs.min_row_tokens * problem.max_rows) {
    *reason = FixedText<>("max_tokens %lld for %lld rows; serves from %d tokens a row",
                          static_cast<long long>(problem.max_tokens), static_cast<long long>(problem.max_rows),
                          needs.min_row_tokens);
    return KDA_E_MAXIMA;
  }
  if (needs.l2norm_only && !problem.qk_l2norm) {
    *reason = FixedText<>("no_qk_l2norm; serves normalised q and k only");
    return KDA_E_FORM;
  }
  return KDA_OK;
}

}  // namespace kda
