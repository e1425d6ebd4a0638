#include "plan/describe.h"

#include "core/record_format.h"
#include "cpu/targets.h"
#include "plan/json.h"
#include "plan/names.h"
#include "plan/registry.h"

namespace kda {
namespace {

void describe_problem(const Problem& p, JsonWriter& json) {
  json.object([&] {
    json.key("layers").number(p.layers);
    json.key("max_rows").number(p.max_rows);
    json.key("max_tokens").number(p.max_tokens);
    json.key("max_nodes").number(p.max_nodes);
    json.key("max_snapshots").number(p.max_snapshots);
    json.key("heads").number(p.heads);
    json.key("value_heads").number(p.value_heads);
    json.key("key_dim").number(p.key_dim);
    json.key("value_dim").number(p.value_dim);
    json.key("conv_width").number(p.conv_width);
    json.key("io_dtype").string(name_of(p.io));
    json.key("gate_dtype").string(name_of(p.gate_input));
    json.key("beta_dtype").string(name_of(p.beta_input));
    json.key("state_dtype").string(name_of(p.state));
    json.key("conv_state_dtype").string(name_of(p.conv_state));
    json.key("conv_weight_dtype").string(name_of(p.conv_weight));
    json.key("state_layout").string(name_of(p.state_layout));
    json.key("conv_layout").string(name_of(p.conv_layout));
    json.key("gate").string(name_of(p.gate));
    json.key("beta").string(name_of(p.beta));
    json.key("qk_l2norm").boolean(p.qk_l2norm);
    json.key("extend_numerics").string(name_of(p.extend_numerics));
    json.key("verify_numerics").string(name_of(p.verify_numerics));
    json.key("null_slot0").boolean(p.null_slot0);
    json.key("single_root").boolean(p.single_root);
    json.key("check_values").boolean(p.check_values);
    json.key("alignment").number(p.alignment);
    json.key("max_workspace_bytes").number(p.max_workspace_bytes);
  });
}

void describe_candidates(const std::vector<Candidate>& candidates, JsonWriter& json) {
  json.array([&] {
    for (const Candidate& candidate : candidates) {
      json.object([&] {
        json.key("kernel").string(candidate.row->name);
        json.key("backend").string(name_of(candidate.row->backend));
        json.key("taken").boolean(candidate.taken);
        json.key("code").string(kda_status_code(candidate.status));
        json.key("reason").string(candidate.reason);
      });
    }
  });
}

void describe_targets(const kda_context& context, JsonWriter& json) {
  json.array([&] {
    for (int target = 0; target < cpu_target_count(); ++target) {
      json.object([&] {
        json.key("name").string(cpu_target_name(target));
        json.key("available").boolean(cpu_target_available(target));
        json.key("used").boolean(target == context.cpu_target);
      });
    }
  });
}

}  // namespace

std::string describe_context(const kda_context& context) {
  JsonWriter json;
  json.object([&] {
    json.key("version").string(kda_version());
    json.key("abi_version").number(KDA_ABI_VERSION);
    json.key("record_version").number(KDA_RECORD_VERSION);
    json.key("exported_state_version").number(KDA_EXPORTED_STATE_VERSION);
    json.key("usable_cores").number(context.capabilities.usable_cores);
    json.key("threads").number(context.threads->threads());
    json.key("backends").array([&] {
      for (Backend backend : kBackends) {
        const char* missing = context.capabilities.missing(backend);
        json.object([&] {
          json.key("name").string(name_of(backend));
          json.key("available").boolean(missing == nullptr);
          json.key("reason").string(missing == nullptr ? "" : missing);
        });
      }
    });
    json.key("cpu_targets");
    describe_targets(context, json);
    json.key("gpu").number(context.capabilities.gpu);
    json.key("gpu_code").array([&] {
      for (const GpuCode& code : built_gpu_code()) {
        json.object([&] {
          json.key("architecture").string(code.architecture);
          json.key("ran_on_hardware").boolean(code.ran_on_hardware);
        });
      }
    });
    json.key("kernels").array([&] {
      for (const KernelRow& row : kernel_registry()) {
        if (!row.is_built()) continue;
        json.object([&] {
          json.key("name").string(row.name);
          json.key("backend").string(name_of(row.backend));
          json.key("operation").string(name_of(row.operation));
          json.key("summary").string(row.summary);
        });
      }
    });
    json.key("capture").object([&] {
      json.key("directory").string(context.capture.directory);
      json.key("calls").number(context.capture.calls);
    });
  });
  return json.text();
}

std::string describe_plan(const kda_plan& plan) {
  const RecordLayout records = record_layout(plan.problem);
  JsonWriter json;
  json.object([&] {
    json.key("backend").string(name_of(plan.choice.backend));
    json.key("cpu_target").string(plan.choice.backend == Backend::cpu ? cpu_target_name(plan.context->cpu_target) : "");
    json.key("problem");
    describe_problem(plan.problem, json);
    json.key("workspace_bytes").number(plan.choice.all_workspace_bytes());
    json.key("record_row_bytes").number(records.row_bytes);
    json.key("operations").object([&] {
      for (int op = 0; op < kOperationCount; ++op) {
        if (plan.choice.kernels[static_cast<size_t>(op)] == nullptr) continue;
        json.key(name_of(static_cast<Operation>(op)));
        describe_candidates(plan.candidates[op], json);
      }
    });
  });
  return json.text();
}

}  // namespace kda
