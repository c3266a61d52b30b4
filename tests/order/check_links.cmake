# cmake -DMODULE=grid -DLINKS="base;comm" -P check_links.cmake: fails when the table does not allow it.
# With -DLIST=ON: prints "module: everything it may use", a line a module.
cmake_minimum_required(VERSION 3.22...4.0)
include(${CMAKE_CURRENT_LIST_DIR}/../../modules/order.cmake)
if(LIST)
  foreach(module ${FOURFOLD_MODULES})
    fourfold_allowed(${module} allowed)
    list(JOIN allowed " " allowed)
    message("${module}: ${allowed}")
  endforeach()
else()
  fourfold_check_links(${MODULE} ${LINKS})
endif()
