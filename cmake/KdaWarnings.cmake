# kda_warnings: what every target of this project is compiled with. Warnings are errors.
# -ffp-contract=off: exact numerics fix every rounding, so the compiler may not fuse a multiply and an add by itself.
add_library(kda_warnings INTERFACE)
target_compile_options(kda_warnings INTERFACE
  $<$<COMPILE_LANGUAGE:CXX,C>:-Wall -Wextra -Werror -Wno-missing-field-initializers -ffp-contract=off>
  $<$<COMPILE_LANGUAGE:CXX>:-Wnon-virtual-dtor -Wno-psabi>)
# GCC 12 warns of overlapping copies inside std::string's own operator+ (GCC bug 105651).
target_compile_options(kda_warnings INTERFACE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-restrict>)
if(KDA_SANITIZE)
  target_compile_options(kda_warnings INTERFACE
    $<$<COMPILE_LANGUAGE:CXX,C>:-fsanitize=${KDA_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all -g1>)
  target_link_options(kda_warnings INTERFACE -fsanitize=${KDA_SANITIZE})
endif()
