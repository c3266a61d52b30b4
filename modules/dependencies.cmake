# Every third-party package, found once, as one target `dependency_NAME` per package.
# A missing package stops the configuration with the command that installs it.

function(fourfold_need found package debian spack)
  if(NOT ${found})
    message(FATAL_ERROR "Fourfold needs ${package}, which was not found.\n"
                        "  Debian/Ubuntu: apt-get install ${debian}   (or: bash tests/install_packages.sh)\n"
                        "  Spack:         spack install ${spack}   (or: spack env activate . && spack install)\n"
                        "If it is installed elsewhere, add its prefix to -DCMAKE_PREFIX_PATH=...")
  endif()
endfunction()

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # Precompiled headers need these two liberties of ccache.
  set(CMAKE_CXX_COMPILER_LAUNCHER
      ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
      ${CCACHE_PROGRAM})
  add_compile_options($<$<COMPILE_LANG_AND_ID:CXX,GNU>:-fpch-preprocess>)
endif()

set(MPI_CXX_SKIP_MPICXX ON)
find_package(MPI 3.0 COMPONENTS C)
fourfold_need(MPI_C_FOUND "MPI (3.0 or newer)" "libopenmpi-dev openmpi-bin" "openmpi")
add_library(dependency_mpi INTERFACE)
target_link_libraries(dependency_mpi INTERFACE MPI::MPI_C)

find_package(Kokkos 3.4 QUIET)
if(NOT Kokkos_FOUND)
  find_package(Kokkos QUIET) # 4.x does not answer to a request for 3.4
endif()
fourfold_need(Kokkos_FOUND "Kokkos (3.4 or 4.x)" "libtrilinos-kokkos-dev" "kokkos")
find_path(KOKKOS_CORE_HEADER Kokkos_Core.hpp PATHS ${Kokkos_INCLUDE_DIRS} PATH_SUFFIXES trilinos)
if(KOKKOS_CORE_HEADER MATCHES "trilinos")
  # Debian's KokkosConfig.cmake names <prefix>/include, its headers are in <prefix>/include/trilinos.
  set_target_properties(Kokkos::kokkos PROPERTIES INTERFACE_INCLUDE_DIRECTORIES ${KOKKOS_CORE_HEADER})
endif()
add_library(dependency_kokkos INTERFACE)
target_link_libraries(dependency_kokkos INTERFACE Kokkos::kokkos)
# Kokkos' own headers warn under C++20; ours must not.
get_target_property(kokkos_headers Kokkos::kokkos INTERFACE_INCLUDE_DIRECTORIES)
if(kokkos_headers)
  target_include_directories(dependency_kokkos SYSTEM INTERFACE ${kokkos_headers})
endif()

set(HDF5_PREFER_PARALLEL TRUE)
find_package(HDF5 1.10 COMPONENTS C)
if(HDF5_FOUND AND NOT HDF5_IS_PARALLEL)
  message(FATAL_ERROR "Fourfold needs an HDF5 that was built with MPI; the one found (${HDF5_C_LIBRARIES}) was not.\n"
                      "  Debian/Ubuntu: apt-get install libhdf5-openmpi-dev\n  Spack: spack install hdf5+mpi")
endif()
fourfold_need(HDF5_FOUND "parallel HDF5 (1.10 or newer)" "libhdf5-openmpi-dev" "hdf5+mpi")
add_library(dependency_hdf5 INTERFACE)
target_include_directories(dependency_hdf5 SYSTEM INTERFACE ${HDF5_C_INCLUDE_DIRS})
target_link_libraries(dependency_hdf5 INTERFACE ${HDF5_C_LIBRARIES})

find_package(yaml-cpp QUIET)
fourfold_need(yaml-cpp_FOUND "yaml-cpp" "libyaml-cpp-dev" "yaml-cpp")
add_library(dependency_yaml INTERFACE)
target_link_libraries(dependency_yaml INTERFACE yaml-cpp)

find_package(dnnl QUIET)
fourfold_need(dnnl_FOUND "oneDNN (2.6 or newer)" "libdnnl-dev ocl-icd-opencl-dev opencl-headers" "onednn")
add_library(dependency_onednn INTERFACE)
target_link_libraries(dependency_onednn INTERFACE DNNL::dnnl)

find_path(CBLAS_INCLUDE_DIR cblas.h PATH_SUFFIXES openblas)
find_package(BLAS)
if(NOT CBLAS_INCLUDE_DIR)
  set(BLAS_FOUND FALSE)
endif()
fourfold_need(BLAS_FOUND "a BLAS with cblas.h" "libopenblas-pthread-dev" "openblas")
add_library(dependency_blas INTERFACE)
target_include_directories(dependency_blas SYSTEM INTERFACE ${CBLAS_INCLUDE_DIR})
target_link_libraries(dependency_blas INTERFACE BLAS::BLAS)

find_package(fmt QUIET)
find_package(spdlog QUIET)
fourfold_need(spdlog_FOUND "fmt and spdlog" "libfmt-dev libspdlog-dev" "spdlog")
add_library(dependency_fmt INTERFACE)
target_link_libraries(dependency_fmt INTERFACE fmt::fmt)
add_library(dependency_spdlog INTERFACE)
target_link_libraries(dependency_spdlog INTERFACE spdlog::spdlog)

find_path(CLI11_HEADER CLI/CLI.hpp)
fourfold_need(CLI11_HEADER "CLI11" "libcli11-dev" "cli11")
find_path(JSON_HEADER nlohmann/json.hpp)
fourfold_need(JSON_HEADER "nlohmann-json" "nlohmann-json3-dev" "nlohmann-json")
add_library(dependency_headers INTERFACE)
target_include_directories(dependency_headers SYSTEM INTERFACE ${CLI11_HEADER} ${JSON_HEADER})

if(FOURFOLD_TESTS)
  find_package(GTest QUIET)
  fourfold_need(GTest_FOUND "GoogleTest" "libgtest-dev libgmock-dev" "googletest")
endif()
