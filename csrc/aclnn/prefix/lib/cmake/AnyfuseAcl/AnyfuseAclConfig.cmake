# find_package(AnyfuseAcl) gives the target AnyfuseAcl::acl: headers, library and run path.
get_filename_component(_anyfuse_root "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
get_filename_component(_anyfuse_lib "${_anyfuse_root}/../_lib" ABSOLUTE)
if(NOT TARGET AnyfuseAcl::acl)
  add_library(AnyfuseAcl::acl SHARED IMPORTED)
  set_target_properties(AnyfuseAcl::acl PROPERTIES
    IMPORTED_LOCATION "${_anyfuse_lib}/libanyfuse_acl.so"
    INTERFACE_INCLUDE_DIRECTORIES "${_anyfuse_root}/include;${_anyfuse_root}/include/aclnn")
endif()
set(AnyfuseAcl_ROOT_DIR "${_anyfuse_root}")
unset(_anyfuse_root)
unset(_anyfuse_lib)
