# The one-way order of the modules: what each may link, and so include, beside all that those may. Checked when a module
# is made, and held by the test `include_order`. Level by level:

set(FOURFOLD_MODULES "") # in an order in which each stands after what it may use
function(fourfold_may_use module)
  list(APPEND FOURFOLD_MODULES ${module})
  set(FOURFOLD_MODULES ${FOURFOLD_MODULES} PARENT_SCOPE)
  set(FOURFOLD_MAY_USE_${module} ${ARGN} PARENT_SCOPE)
endfunction()

fourfold_may_use(kernels) # kernels know nothing of modules/
fourfold_may_use(base)
fourfold_may_use(grid base)
fourfold_may_use(machine base)
fourfold_may_use(deck grid machine)
fourfold_may_use(comm grid machine)
fourfold_may_use(tensor comm kernels)
fourfold_may_use(h5 comm)
fourfold_may_use(graph grid machine)
fourfold_may_use(layers tensor graph)
fourfold_may_use(model layers deck)
fourfold_may_use(schedule graph)
fourfold_may_use(data comm deck)
fourfold_may_use(optim tensor deck)
fourfold_may_use(checkpoint tensor h5)
fourfold_may_use(trials h5 deck)
fourfold_may_use(plan graph schedule machine deck trials)
fourfold_may_use(simulate graph schedule machine)
fourfold_may_use(train model schedule data optim checkpoint)
fourfold_may_use(infer model schedule checkpoint)
fourfold_may_use(study train infer plan simulate)
fourfold_may_use(tune train infer plan simulate)

# One third-party library, one owner (fmt and the header libraries are everyone's, Kokkos belongs to all that run kernels).
set(FOURFOLD_OWNERS_dependency_mpi comm h5) # HDF5's parallel files are opened with MPI's types
set(FOURFOLD_OWNERS_dependency_nccl comm)
set(FOURFOLD_OWNERS_dependency_cublas kernels)
set(FOURFOLD_OWNERS_dependency_cuda kernels comm) # what a product and a collective need of a GPU
set(FOURFOLD_OWNERS_dependency_hdf5 h5)
set(FOURFOLD_OWNERS_dependency_yaml deck)
set(FOURFOLD_OWNERS_dependency_spdlog base)
set(FOURFOLD_OWNERS_dependency_onednn kernels)
set(FOURFOLD_OWNERS_dependency_blas kernels)
set(FOURFOLD_OWNERS_dependency_pcre2 data)
set(FOURFOLD_OWNERS_dependency_sentencepiece data)

# `result`: every module that `module` may use, those of its own included.
function(fourfold_allowed module result)
  set(allowed "")
  foreach(used ${FOURFOLD_MAY_USE_${module}})
    fourfold_allowed(${used} further)
    list(APPEND allowed ${used} ${further})
  endforeach()
  list(REMOVE_DUPLICATES allowed)
  set(${result} ${allowed} PARENT_SCOPE)
endfunction()

# Stops when `module` links something that it may not. A name in the list is a module or a dependency_*.
function(fourfold_check_links module)
  if(NOT module IN_LIST FOURFOLD_MODULES)
    message(FATAL_ERROR "modules/order.cmake does not know the module ${module}; its table says what it may use.")
  endif()
  fourfold_allowed(${module} allowed)
  foreach(name ${ARGN})
    if(name MATCHES "^dependency_")
      if(DEFINED FOURFOLD_OWNERS_${name} AND NOT module IN_LIST FOURFOLD_OWNERS_${name})
        message(FATAL_ERROR "${module} may not link ${name}: it belongs to ${FOURFOLD_OWNERS_${name}} (modules/order.cmake).")
      endif()
    elseif(NOT name IN_LIST allowed AND NOT name STREQUAL module)
      list(JOIN allowed ", " allowed)
      message(FATAL_ERROR "${module} may not use ${name}. It may use: ${allowed} (modules/order.cmake).")
    endif()
  endforeach()
endfunction()
