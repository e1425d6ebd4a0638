# What a Python build adds: the interpreter it is for, and DLPack's header out of the build requirement apache-tvm-ffi
# where tools/install-deps has not put one.
option(KDA_PYTHON_DEMO_MODEL "Pack the built-in model into the wheel (20 MB)" ON)
find_package(Python 3.10 REQUIRED COMPONENTS Interpreter Development.Module OPTIONAL_COMPONENTS Development.SABIModule)
if(NOT EXISTS ${PROJECT_SOURCE_DIR}/.deps/include/dlpack/dlpack.h AND NOT KDA_DLPACK_INCLUDE_DIR)
  execute_process(
    COMMAND ${Python_EXECUTABLE} -c
      "import importlib.util, pathlib; print(pathlib.Path(importlib.util.find_spec('tvm_ffi').origin).parent / 'include')"
    OUTPUT_VARIABLE include_dir OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  if(EXISTS ${include_dir}/dlpack/dlpack.h)
    set(KDA_DLPACK_INCLUDE_DIR ${include_dir} CACHE PATH "Folder of dlpack/dlpack.h")
  endif()
endif()
