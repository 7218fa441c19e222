# oa_warnings(target): warnings as errors and the sanitizers of OA_SANITIZE, private to the target.
function(oa_warnings target)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wpedantic -Werror -Wno-missing-field-initializers)
  if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    # Its -Wshadow would also name parameters that shadow members, which GCC's local form allows; and
    # it blames libstdc++'s own std::stable_sort for a deprecated call. GCC checks both.
    target_compile_options(${target} PRIVATE -Wno-missing-designated-field-initializers
                                             -Wno-deprecated-declarations)
  else()
    target_compile_options(${target} PRIVATE -Wshadow=local)
  endif()
  if(OA_SANITIZE)
    target_compile_options(${target} PRIVATE -fsanitize=${OA_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
    target_link_options(${target} PRIVATE -fsanitize=${OA_SANITIZE})
    get_target_property(type ${target} TYPE)
    if(type STREQUAL EXECUTABLE)
      target_sources(${target} PRIVATE ${PROJECT_SOURCE_DIR}/cmake/keep_libraries.cpp)
    endif()
  endif()
endfunction()
