# The libraries that OA is built from, all from the distribution (docs/dependencies.md says why each).
find_package(Threads REQUIRED)
find_package(ZLIB REQUIRED)
find_package(fmt REQUIRED)
find_package(VulkanHeaders REQUIRED)
find_package(nlohmann_json REQUIRED)
find_path(OA_MINIZIP_INCLUDE unzip.h PATH_SUFFIXES minizip REQUIRED)
find_library(OA_MINIZIP minizip REQUIRED)
find_path(OA_VOLK_INCLUDE volk.h REQUIRED)
find_path(OA_XXHASH_INCLUDE xxhash.h REQUIRED)
find_path(OA_SPIRV_INCLUDE spirv/unified1/spirv.hpp11 REQUIRED)

# LLVM is linked statically and its symbols are hidden, so a program may use another LLVM beside us.
find_program(OA_LLVM_CONFIG NAMES llvm-config-19 REQUIRED)
function(oa_llvm_query out)
  execute_process(COMMAND ${OA_LLVM_CONFIG} ${ARGN} OUTPUT_VARIABLE text
                  OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  separate_arguments(items UNIX_COMMAND "${text}")
  set(${out} ${items} PARENT_SCOPE)
endfunction()
oa_llvm_query(llvm_include --includedir)
oa_llvm_query(llvm_libdir --libdir)
oa_llvm_query(llvm_libs --link-static --libs core orcjit passes x86codegen x86desc x86info)
oa_llvm_query(llvm_system_libs --link-static --system-libs)

add_library(oa_llvm INTERFACE)
target_include_directories(oa_llvm SYSTEM INTERFACE ${llvm_include})
target_link_directories(oa_llvm INTERFACE ${llvm_libdir})
target_link_libraries(oa_llvm INTERFACE ${llvm_libs} ${llvm_system_libs})
