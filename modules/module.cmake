# How libraries of this project are made. One library per module; a module sees only the headers of the modules
# that it links, and it may link only what the table of order.cmake allows: any other include fails to build.
#
#   fourfold_module(NAME SOURCES a.cpp b.cpp LINK base grid [PRIVATE_LINK dependency_x] [KOKKOS])
#
# Headers are included as "NAME/file.hpp": each module's folder is linked under its own include root,
# <build>/include/NAME/NAME -> <source>/modules/NAME. KOKKOS: the sources include Kokkos and use its precompiled header.

include(${CMAKE_CURRENT_LIST_DIR}/order.cmake)

# nvcc hands the C++ compiler's own options on with -Xcompiler; those that decide about speed do not matter to the little
# that it compiles here.
add_library(fourfold_flags INTERFACE)
function(fourfold_flag)
  foreach(flag ${ARGN})
    target_compile_options(fourfold_flags INTERFACE $<$<NOT:$<COMPILE_LANGUAGE:CUDA>>:${flag}>)
  endforeach()
endfunction()
fourfold_flag(-Wall -Wextra -Wpedantic -Wshadow -Wno-unknown-pragmas -fno-math-errno -fno-trapping-math)
target_compile_options(fourfold_flags INTERFACE $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra,-Wshadow>)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # GCC 12 warns of overlapping copies inside std::string's operator+ (its bug 105651).
  fourfold_flag(-Wno-restrict)
endif()
if(FOURFOLD_ARCH)
  fourfold_flag(-march=${FOURFOLD_ARCH})
endif()
if(FOURFOLD_WERROR)
  fourfold_flag(-Werror)
  target_compile_options(fourfold_flags INTERFACE $<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings$<SEMICOLON>-Xcompiler=-Werror>)
endif()
if(FOURFOLD_SANITIZE)
  fourfold_flag(-fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer)
  target_link_options(fourfold_flags INTERFACE -fsanitize=address,undefined)
endif()
if(FOURFOLD_POISON)
  target_compile_definitions(fourfold_flags INTERFACE FOURFOLD_POISON)
endif()

# One precompiled header of Kokkos, shared by every target that includes it.
file(WRITE ${CMAKE_BINARY_DIR}/pch/kokkos.cpp "// carries the precompiled header of Kokkos\n")
add_library(fourfold_kokkos_pch OBJECT ${CMAKE_BINARY_DIR}/pch/kokkos.cpp)
target_link_libraries(fourfold_kokkos_pch PUBLIC dependency_kokkos PRIVATE fourfold_flags)
target_precompile_headers(fourfold_kokkos_pch PRIVATE <Kokkos_Core.hpp>)

function(fourfold_include_root name source_dir)
  file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/include/${name})
  file(CREATE_LINK ${source_dir} ${CMAKE_BINARY_DIR}/include/${name}/${name} SYMBOLIC)
endfunction()

# A second library of one folder (fourfold_library) is checked like its module.
function(fourfold_library target folder)
  cmake_parse_arguments(PARSE_ARGV 2 arg "KOKKOS" "" "SOURCES;LINK;PRIVATE_LINK")
  set(linked "")
  foreach(name ${arg_LINK} ${arg_PRIVATE_LINK})
    if(TARGET ${name})
      get_target_property(module ${name} FOURFOLD_MODULE)
      if(module)
        set(name ${module})
      endif()
    endif()
    list(APPEND linked ${name})
  endforeach()
  fourfold_check_links(${folder} ${linked})
  fourfold_include_root(${folder} ${CMAKE_CURRENT_SOURCE_DIR})
  add_library(${target} STATIC ${arg_SOURCES})
  set_target_properties(${target} PROPERTIES FOURFOLD_MODULE ${folder})
  target_include_directories(${target} PUBLIC ${CMAKE_BINARY_DIR}/include/${folder})
  target_link_libraries(${target} PUBLIC ${arg_LINK} PRIVATE ${arg_PRIVATE_LINK} fourfold_flags)
  if(arg_KOKKOS)
    target_link_libraries(${target} PUBLIC dependency_kokkos)
    target_precompile_headers(${target} REUSE_FROM fourfold_kokkos_pch)
  endif()
endfunction()

function(fourfold_module name)
  fourfold_library(${name} ${name} ${ARGN})
endfunction()
