# Installs OA into a path with a space, moves the tree, and builds and runs a project against it, once
# through find_package and once through pkg-config.
# cmake -D build=<OA's build folder> -D source=<this folder> -D cxx=<compiler> -D flags=<flags> -P run.cmake
function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE code OUTPUT_VARIABLE out ERROR_VARIABLE out)
  if(NOT code EQUAL 0)
    list(JOIN ARGN " " command)
    message(FATAL_ERROR "failed (${code}): ${command}\n${out}")
  endif()
  set(run_output "${out}" PARENT_SCOPE)
endfunction()

set(work "${build}/consumer test")
file(REMOVE_RECURSE "${work}")
run(${CMAKE_COMMAND} --install ${build} --prefix "${work}/first prefix")
file(RENAME "${work}/first prefix" "${work}/moved prefix")
set(prefix "${work}/moved prefix")

run(${CMAKE_COMMAND} -G Ninja -S ${source} -B "${work}/build" -D CMAKE_BUILD_TYPE=Debug
    -D CMAKE_CXX_COMPILER=${cxx} "-DCMAKE_CXX_FLAGS=${flags} -Wall -Wextra -Werror"
    "-DCMAKE_PREFIX_PATH=${prefix}")
run(${CMAKE_COMMAND} --build "${work}/build")
run("${work}/build/consumer")
message("${run_output}")

run("${prefix}/bin/oa" --version)
message("${run_output}")

find_program(pkg_config pkg-config REQUIRED)
file(GLOB_RECURSE pc "${prefix}/*/oa.pc")
get_filename_component(pc_dir "${pc}" DIRECTORY)
file(GLOB library "${prefix}/lib*/liboa.so" "${prefix}/lib*/*/liboa.so")
get_filename_component(library_dir "${library}" DIRECTORY)
run(${CMAKE_COMMAND} -E env "PKG_CONFIG_PATH=${pc_dir}" sh -c
    "eval \"$1 $4 -std=c++23 '$2/main.cpp' -o '$3/by pkg-config' $(pkg-config --cflags --libs oa)\""
    sh ${cxx} ${source} "${work}" ${flags})
run(${CMAKE_COMMAND} -E env "LD_LIBRARY_PATH=${library_dir}" "${work}/by pkg-config")
message("${run_output}")
