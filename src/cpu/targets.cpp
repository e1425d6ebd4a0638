#include "cpu/targets.h"

namespace kda {

int cpu_target_count() { return 1; }
const char* cpu_target_name(int) { return "SCALAR"; }
bool cpu_target_available(int target) { return target == 0; }
int cpu_best_target() { return 0; }

}  // namespace kda
