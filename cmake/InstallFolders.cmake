# SPDX-License-Identifier: Apache-2.0
# While installing: makes those of `folders` that are not there, and what they lie in, for all to enter, whatever the umask of
# who installs or packs. What CMake makes itself (CMAKE_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS) the umask cuts down.
foreach(folder ${folders})
  if(NOT IS_ABSOLUTE ${folder})
    set(folder ${CMAKE_INSTALL_PREFIX}/${folder})
  endif()
  set(missing "")
  while(NOT folder MATCHES "^/?$" AND NOT EXISTS $ENV{DESTDIR}${folder})
    list(PREPEND missing $ENV{DESTDIR}${folder})
    cmake_path(GET folder PARENT_PATH folder)
  endwhile()
  foreach(made ${missing})
    file(MAKE_DIRECTORY ${made})
    file(CHMOD ${made} PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
  endforeach()
endforeach()
