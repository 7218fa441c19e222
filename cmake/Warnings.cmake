# oa_warnings(target): warnings as errors and the sanitizers of OA_SANITIZE, private to the target.
function(oa_warnings target)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wpedantic -Werror -Wno-missing-field-initializers)
  if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    # Its -Wshadow would also name parameters that shadow members, which GCC's local form allows.
    target_compile_options(${target} PRIVATE -Wno-missing-designated-field-initializers)
  else()
    target_compile_options(${target} PRIVATE -Wshadow=local)
  endif()
  if(OA_SANITIZE)
    target_compile_options(${target} PRIVATE -fsanitize=${OA_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
    target_link_options(${target} PRIVATE -fsanitize=${OA_SANITIZE})
  endif()
endfunction()
