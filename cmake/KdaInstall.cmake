# Installs headers (DLPack's with them, since kda.h includes it), both libraries, the CMake package and kda.pc.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

install(DIRECTORY include/kda DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(FILES ${KDA_DLPACK_INCLUDE_DIR}/dlpack/dlpack.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/dlpack)
install(TARGETS kda_static kda_shared EXPORT kda-targets
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(EXPORT kda-targets NAMESPACE kda:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/kda)
configure_package_config_file(cmake/kda-config.cmake.in ${PROJECT_BINARY_DIR}/kda-config.cmake
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/kda)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/kda-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/kda-config.cmake ${PROJECT_BINARY_DIR}/kda-config-version.cmake
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/kda)
file(RELATIVE_PATH KDA_PC_INCLUDEDIR ${CMAKE_INSTALL_FULL_LIBDIR} ${CMAKE_INSTALL_FULL_INCLUDEDIR})
configure_file(cmake/kda.pc.in ${PROJECT_BINARY_DIR}/kda.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/kda.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
if(TARGET kda)
  install(TARGETS kda RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
