// The SIMD targets that the cpu backend was compiled for. An index names a target everywhere in the library
// (Execution::cpu_target); its name is what users write and read.
#pragma once

namespace kda {

int cpu_target_count();
const char* cpu_target_name(int target);  // "AVX2"; static memory
bool cpu_target_available(int target);    // this machine can run it
int cpu_best_target();                    // the index used when nothing is forced

}  // namespace kda
