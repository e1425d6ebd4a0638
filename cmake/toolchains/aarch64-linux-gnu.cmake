# Debian's cross compiler for 64-bit Arm; programs run under qemu's user mode emulation. Packages for Arm are looked for
# in KDA_ARM64_ROOT, an unpacked folder of theirs that tools/test-neon fetches, and nowhere else.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)

get_filename_component(kda_source "${CMAKE_CURRENT_LIST_DIR}/../.." ABSOLUTE)
set(KDA_ARM64_ROOT "${kda_source}/build/arm64/root" CACHE PATH "Where the packages for Arm are unpacked")
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES KDA_ARM64_ROOT)
set(CMAKE_FIND_ROOT_PATH "${KDA_ARM64_ROOT}" "${kda_source}/.deps")
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)

# The plainest 64-bit Arm core: what needs more than ARMv8.0 dies here of an illegal instruction.
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64-static -L /usr/aarch64-linux-gnu -cpu cortex-a53)
