# The CUDA backend: sources of src/cuda, machine code for the listed architectures, static cudart.
if(NOT CMAKE_CUDA_COMPILER)
  find_program(CMAKE_CUDA_COMPILER nvcc HINTS ENV CUDA_HOME PATHS /usr/local/cuda/bin)
endif()
set(CMAKE_CUDA_ARCHITECTURES OFF)  # the flags below name them, sm_90a included
enable_language(CUDA)
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know that nvcc has it
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
endif()
if(CCACHE)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE})
endif()
set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
set(KDA_CUDA_ARCHITECTURES "80;90a" CACHE STRING
  "GPU architectures to compile for; everything the sources support: 80;86;89;90a;100;103;120")

add_library(kda_cuda_flags INTERFACE)
string(REPLACE ";" "," architectures_text "${KDA_CUDA_ARCHITECTURES}")
foreach(architecture IN LISTS KDA_CUDA_ARCHITECTURES)
  target_compile_options(kda_cuda_flags INTERFACE
    "$<$<COMPILE_LANGUAGE:CUDA>:SHELL:-gencode=arch=compute_${architecture},code=sm_${architecture}>")
endforeach()
# -fmad=false: exact numerics fix every rounding, so ptxas may not fuse a multiply and an add by itself.
target_compile_options(kda_cuda_flags INTERFACE
  "$<$<COMPILE_LANGUAGE:CUDA>:SHELL:-fmad=false --expt-relaxed-constexpr -Werror all-warnings -Xcompiler=-Wall,-Wextra,-Wno-unused-parameter>")
find_package(CUDAToolkit REQUIRED)

# A program that runs on a machine with nothing but an NVIDIA driver and glibc: the C++ and CUDA runtimes are linked
# statically, libhwy lies beside it (tools/gpu-bundle).
function(kda_gpu_program name)
  cmake_parse_arguments(program "EXCLUDE_FROM_ALL" "" "LIBRARIES;SOURCES" ${ARGN})
  add_executable(${name} ${program_SOURCES})
  set_target_properties(${name} PROPERTIES EXCLUDE_FROM_ALL ${program_EXCLUDE_FROM_ALL}
    BUILD_RPATH_USE_ORIGIN ON BUILD_RPATH "$ORIGIN")
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/tests
    $<TARGET_PROPERTY:kda_objects,INTERFACE_INCLUDE_DIRECTORIES>)
  target_link_libraries(${name} PRIVATE ${program_LIBRARIES} CUDA::cudart_static kda_warnings)
  target_link_options(${name} PRIVATE -static-libstdc++ -static-libgcc)
endfunction()
