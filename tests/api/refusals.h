// Every refusal of the catalogue with something that triggers it.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "kda/kda.h"

namespace kda_test {

struct Refusal {
  std::string name;
  kda_status expected;
  std::function<kda_status(kda_error*)> trigger;
};

std::vector<Refusal> call_refusals();         // tensors, combinations, values
std::vector<Refusal> plan_refusals();         // problems, kernels
std::vector<Refusal> pool_refusals();         // the pool runtime
std::vector<Refusal> environment_refusals();  // contexts

inline std::vector<Refusal> all_refusals() {
  std::vector<Refusal> all;
  for (const auto& part : {call_refusals(), plan_refusals(), pool_refusals(), environment_refusals()}) {
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

}  // namespace kda_test
