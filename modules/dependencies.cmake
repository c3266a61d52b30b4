# Every third-party package, found once, as one target `dependency_NAME`. What is missing or too old stops the
# configuration with what was wanted, what was found, and the commands that install it.

# fourfold_need(PACKAGE IS_THERE VERSION MINIMUM DEBIAN SPACK): an empty VERSION is not compared.
function(fourfold_need package is_there version minimum debian spack)
  if(NOT is_there)
    set(verdict "none was found")
  elseif(version AND version VERSION_LESS minimum)
    set(verdict "${version} was found")
  else()
    string(STRIP "${package} ${version}" found)
    set_property(GLOBAL APPEND PROPERTY FOURFOLD_FOUND "${found}")
    return()
  endif()
  message(FATAL_ERROR "Fourfold needs ${package} ${minimum} or newer; ${verdict}.\n"
                      "  Debian, Ubuntu: bash tests/install_packages.sh   (or: apt-get install ${debian})\n"
                      "  Spack: spack env activate . && spack install   (or: spack install ${spack})\n"
                      "  Installed elsewhere: add its prefix to -DCMAKE_PREFIX_PATH=...")
endfunction()

find_program(CCACHE_PROGRAM ccache)
mark_as_advanced(CCACHE_PROGRAM)
# (A Kokkos with CUDA puts a launcher of its own before the compiler, which does not know it behind ccache.)
if(CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER AND NOT FOURFOLD_CUDA)
  # Precompiled headers need these two liberties of ccache.
  set(CMAKE_CXX_COMPILER_LAUNCHER
      ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
      ${CCACHE_PROGRAM})
  add_compile_options($<$<COMPILE_LANG_AND_ID:CXX,GNU>:-fpch-preprocess>)
endif()

set(MPI_CXX_SKIP_MPICXX ON)
find_package(MPI QUIET COMPONENTS C)
fourfold_need(MPI "${MPI_C_FOUND}" "${MPI_C_VERSION}" 3.0 "libopenmpi-dev openmpi-bin" "openmpi")
add_library(dependency_mpi INTERFACE)
target_link_libraries(dependency_mpi INTERFACE MPI::MPI_C)

find_package(Kokkos QUIET)
fourfold_need(Kokkos "${Kokkos_FOUND}" "${Kokkos_VERSION}" 3.4 "libtrilinos-kokkos-dev" "kokkos")
# Debian's KokkosConfig.cmake names <prefix>/include; its headers are in <prefix>/include/trilinos.
find_path(FOURFOLD_KOKKOS_HEADERS Kokkos_Core.hpp
          PATHS ${Kokkos_DIR}/../../../include ${Kokkos_DIR}/../../../../include
          PATH_SUFFIXES kokkos trilinos NO_DEFAULT_PATH)
mark_as_advanced(FOURFOLD_KOKKOS_HEADERS)
if(FOURFOLD_KOKKOS_HEADERS MATCHES "trilinos$")
  get_filename_component(kokkos_headers ${FOURFOLD_KOKKOS_HEADERS} REALPATH)
  set_target_properties(Kokkos::kokkos PROPERTIES INTERFACE_INCLUDE_DIRECTORIES ${kokkos_headers})
endif()
add_library(dependency_kokkos INTERFACE)
target_link_libraries(dependency_kokkos INTERFACE Kokkos::kokkos)
# Kokkos' own headers warn under C++20; ours must not.
get_target_property(kokkos_headers Kokkos::kokkos INTERFACE_INCLUDE_DIRECTORIES)
if(kokkos_headers)
  target_include_directories(dependency_kokkos SYSTEM INTERFACE ${kokkos_headers})
endif()

set(HDF5_PREFER_PARALLEL TRUE)
find_package(HDF5 QUIET COMPONENTS C)
if(HDF5_FOUND AND NOT HDF5_IS_PARALLEL)
  message(FATAL_ERROR "Fourfold needs an HDF5 that was built with MPI; the one found (${HDF5_C_LIBRARIES}) was not.\n"
                      "  Debian, Ubuntu: apt-get install libhdf5-openmpi-dev\n"
                      "  Spack: spack install hdf5+mpi\n"
                      "  Installed elsewhere: set HDF5_ROOT to its prefix")
endif()
fourfold_need("parallel HDF5" "${HDF5_FOUND}" "${HDF5_VERSION}" 1.10 "libhdf5-openmpi-dev" "hdf5+mpi")
add_library(dependency_hdf5 INTERFACE)
target_include_directories(dependency_hdf5 SYSTEM INTERFACE ${HDF5_C_INCLUDE_DIRS})
target_link_libraries(dependency_hdf5 INTERFACE ${HDF5_C_LIBRARIES})

find_package(yaml-cpp QUIET)
fourfold_need(yaml-cpp "${yaml-cpp_FOUND}" "${yaml-cpp_VERSION}" 0.6.3 "libyaml-cpp-dev" "yaml-cpp")
add_library(dependency_yaml INTERFACE)
if(TARGET yaml-cpp::yaml-cpp)
  target_link_libraries(dependency_yaml INTERFACE yaml-cpp::yaml-cpp)
else() # before 0.8
  target_link_libraries(dependency_yaml INTERFACE yaml-cpp)
endif()

find_package(dnnl QUIET)
fourfold_need(oneDNN "${dnnl_FOUND}" "${dnnl_VERSION}" 2.6 "libdnnl-dev ocl-icd-opencl-dev opencl-headers" "onednn")
add_library(dependency_onednn INTERFACE)
target_link_libraries(dependency_onednn INTERFACE DNNL::dnnl)

find_path(CBLAS_INCLUDE_DIR cblas.h PATH_SUFFIXES openblas)
mark_as_advanced(CBLAS_INCLUDE_DIR)
find_package(BLAS QUIET)
if(BLAS_FOUND AND CBLAS_INCLUDE_DIR)
  set(cblas_found TRUE)
endif()
fourfold_need("BLAS with cblas.h" "${cblas_found}" "" "3" "libopenblas-pthread-dev" "openblas")
add_library(dependency_blas INTERFACE)
target_include_directories(dependency_blas SYSTEM INTERFACE ${CBLAS_INCLUDE_DIR})
target_link_libraries(dependency_blas INTERFACE BLAS::BLAS)

find_package(fmt QUIET)
fourfold_need(fmt "${fmt_FOUND}" "${fmt_VERSION}" 8.0 "libfmt-dev" "fmt")
add_library(dependency_fmt INTERFACE)
target_link_libraries(dependency_fmt INTERFACE fmt::fmt)
if(FOURFOLD_CUDA) # fmt 9 thinks that nvcc has none of half of the constexpr functions that the other half calls
  target_compile_definitions(dependency_fmt INTERFACE FMT_USE_CONSTEXPR=1)
endif()

find_package(spdlog QUIET)
fourfold_need(spdlog "${spdlog_FOUND}" "${spdlog_VERSION}" 1.9 "libspdlog-dev" "spdlog")
add_library(dependency_spdlog INTERFACE)
target_link_libraries(dependency_spdlog INTERFACE spdlog::spdlog)

find_package(CLI11 CONFIG QUIET)
fourfold_need(CLI11 "${CLI11_FOUND}" "${CLI11_VERSION}" 2.0 "libcli11-dev" "cli11")
find_package(nlohmann_json CONFIG QUIET)
fourfold_need(nlohmann-json "${nlohmann_json_FOUND}" "${nlohmann_json_VERSION}" 3.9 "nlohmann-json3-dev" "nlohmann-json")
add_library(dependency_headers INTERFACE)
target_link_libraries(dependency_headers INTERFACE CLI11::CLI11 nlohmann_json::nlohmann_json)

find_path(PCRE2_INCLUDE_DIR pcre2.h)
find_library(PCRE2_LIBRARY pcre2-8)
mark_as_advanced(PCRE2_INCLUDE_DIR PCRE2_LIBRARY)
if(PCRE2_INCLUDE_DIR AND PCRE2_LIBRARY)
  set(pcre2_found TRUE)
endif()
fourfold_need(PCRE2 "${pcre2_found}" "" "10.30" "libpcre2-dev" "pcre2")
add_library(dependency_pcre2 INTERFACE)
target_include_directories(dependency_pcre2 SYSTEM INTERFACE ${PCRE2_INCLUDE_DIR})
target_link_libraries(dependency_pcre2 INTERFACE ${PCRE2_LIBRARY})

# Optional: models of SentencePiece as tokenizers.
find_path(SENTENCEPIECE_INCLUDE_DIR sentencepiece_processor.h)
find_library(SENTENCEPIECE_LIBRARY sentencepiece)
mark_as_advanced(SENTENCEPIECE_INCLUDE_DIR SENTENCEPIECE_LIBRARY)
if(SENTENCEPIECE_INCLUDE_DIR AND SENTENCEPIECE_LIBRARY)
  set(FOURFOLD_HAS_SENTENCEPIECE TRUE)
  set_property(GLOBAL APPEND PROPERTY FOURFOLD_FOUND SentencePiece)
  add_library(dependency_sentencepiece INTERFACE)
  target_include_directories(dependency_sentencepiece SYSTEM INTERFACE ${SENTENCEPIECE_INCLUDE_DIR})
  target_link_libraries(dependency_sentencepiece INTERFACE ${SENTENCEPIECE_LIBRARY})
else()
  message(STATUS "NOT BUILT, NOT TESTED: SentencePiece tokenizers (install libsentencepiece-dev and configure again)")
endif()

if(FOURFOLD_TESTS)
  find_package(GTest QUIET)
  fourfold_need(GoogleTest "${GTest_FOUND}" "${GTest_VERSION}" 1.11 "libgtest-dev" "googletest")
  find_package(Python3 QUIET COMPONENTS Interpreter)
  fourfold_need(Python "${Python3_FOUND}" "${Python3_VERSION}" 3.6 "python3" "python")
endif()

# CUDA. A program for GPUs (FOURFOLD_CUDA) needs all of it. Else, where the toolkit and NCCL are there, the libraries that
# need no Kokkos with CUDA (FOURFOLD_DEVICE_PARTS) are built, so that their sources compile and their errors are tested.
if(FOURFOLD_CUDA AND NOT "CUDA" IN_LIST Kokkos_DEVICES)
  message(FATAL_ERROR "FOURFOLD_CUDA needs a Kokkos that was built with CUDA (Kokkos_ENABLE_CUDA=ON, version 4); the "
                      "one found in ${Kokkos_DIR} has only: ${Kokkos_DEVICES}.\n"
                      "  Spack: spack install kokkos+cuda+wrapper cuda_arch=90\n"
                      "  Installed elsewhere: add its prefix to -DCMAKE_PREFIX_PATH=...")
endif()
if(FOURFOLD_CUDA OR FOURFOLD_DEVICE_PARTS)
  find_package(CUDAToolkit QUIET)
  find_path(NCCL_INCLUDE_DIR nccl.h HINTS ENV NCCL_HOME ${CUDAToolkit_INCLUDE_DIRS} PATH_SUFFIXES include)
  find_library(NCCL_LIBRARY nccl HINTS ENV NCCL_HOME ${CUDAToolkit_LIBRARY_DIR} PATH_SUFFIXES lib lib64)
  mark_as_advanced(NCCL_INCLUDE_DIR NCCL_LIBRARY)
  if(NCCL_INCLUDE_DIR AND NCCL_LIBRARY)
    set(nccl_found TRUE)
  endif()
  if(CUDAToolkit_FOUND AND NOT DEFINED ENV{CUDACXX})
    set(ENV{CUDACXX} ${CUDAToolkit_NVCC_EXECUTABLE}) # where it is not on the PATH
  endif()
  include(CheckLanguage)
  check_language(CUDA)
endif()
if(FOURFOLD_CUDA)
  fourfold_need("CUDA Toolkit" "${CUDAToolkit_FOUND}" "${CUDAToolkit_VERSION}" 12.0 "nvidia-cuda-toolkit" "cuda")
  fourfold_need(NCCL "${nccl_found}" "" 2.14 "libnccl-dev" "nccl")
  if(NOT CMAKE_CUDA_COMPILER)
    message(FATAL_ERROR "FOURFOLD_CUDA needs nvcc, which was not found: load the CUDA module, or set CUDACXX.")
  endif()
endif()
if(CUDAToolkit_FOUND AND CUDAToolkit_VERSION VERSION_GREATER_EQUAL 12.0 AND nccl_found AND CMAKE_CUDA_COMPILER
   AND TARGET CUDA::cublasLt)
  set(FOURFOLD_HAS_DEVICE_PARTS TRUE)
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES 80) # and its PTX, which newer GPUs compile at the first start
  endif()
  enable_language(CUDA)
  if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION) # CMake 3.25 does not know it of nvcc 12
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
  endif()
  add_library(dependency_cuda INTERFACE)
  target_link_libraries(dependency_cuda INTERFACE CUDA::cudart)
  target_include_directories(dependency_cuda SYSTEM INTERFACE ${CUDAToolkit_INCLUDE_DIRS})
  add_library(dependency_cublas INTERFACE)
  target_link_libraries(dependency_cublas INTERFACE CUDA::cublasLt dependency_cuda)
  add_library(dependency_nccl INTERFACE)
  target_include_directories(dependency_nccl SYSTEM INTERFACE ${NCCL_INCLUDE_DIR})
  target_link_libraries(dependency_nccl INTERFACE ${NCCL_LIBRARY})
  if(NOT FOURFOLD_CUDA)
    set_property(GLOBAL APPEND PROPERTY FOURFOLD_FOUND "CUDA Toolkit ${CUDAToolkit_VERSION} with NCCL")
  endif()
elseif(FOURFOLD_DEVICE_PARTS)
  message(STATUS "NOT BUILT, NOT TESTED: cuBLASLt products and NCCL collectives (no CUDA Toolkit 12.0 or newer, no nvcc "
                 "that works, or no NCCL)")
endif()

get_property(found GLOBAL PROPERTY FOURFOLD_FOUND)
list(JOIN found ", " found)
message(STATUS "Found ${found}")
