# `cmake --install`: library, public headers, command, CMake package and pkg-config file. The tree is
# relocatable: every path inside it is relative.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/oa)
set_target_properties(oa PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR})
install(TARGETS oa EXPORT oaTargets)
install(EXPORT oaTargets NAMESPACE oa:: DESTINATION ${package_dir})
# Not for users: the code generators and the insides of the devices, whose headers need LLVM or volk, and
# states as JSON.
install(DIRECTORY ${PROJECT_SOURCE_DIR}/oa/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/oa
        FILES_MATCHING PATTERN "*.h"
        PATTERN "codegen" EXCLUDE
        PATTERN "device/cpu" EXCLUDE
        PATTERN "device/vulkan" EXCLUDE
        PATTERN "ml/training/state_text.h" EXCLUDE)
if(TARGET oa_command)
  file(RELATIVE_PATH bin_to_lib ${CMAKE_INSTALL_FULL_BINDIR} ${CMAKE_INSTALL_FULL_LIBDIR})
  set_target_properties(oa_command PROPERTIES INSTALL_RPATH $ORIGIN/${bin_to_lib})
  install(TARGETS oa_command)
endif()

configure_package_config_file(cmake/oaConfig.cmake.in ${PROJECT_BINARY_DIR}/oaConfig.cmake
                              INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/oaConfigVersion.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/oaConfig.cmake ${PROJECT_BINARY_DIR}/oaConfigVersion.cmake
        DESTINATION ${package_dir})

file(RELATIVE_PATH OA_PC_PREFIX ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
configure_file(cmake/oa.pc.in ${PROJECT_BINARY_DIR}/oa.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/oa.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
