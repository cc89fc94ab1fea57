# SPDX-License-Identifier: Apache-2.0
# When cpack has laid out the packages' files: adds the changelog that Debian asks of each, with the version that it has. What
# cpack lays them out in is for all to enter, too, whatever the umask.
foreach(package ${CPACK_COMPONENTS_ALL})
  set(tree ${CPACK_TEMPORARY_DIRECTORY}/${package}/usr)
  file(CHMOD ${tree} PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
  set(changelog ${tree}/share/doc/${package}/changelog)
  configure_file(${CPACK_LOCKSTEP_SOURCES}/deploy/debian/changelog.in ${changelog} @ONLY
                 FILE_PERMISSIONS OWNER_READ OWNER_WRITE GROUP_READ WORLD_READ)
  execute_process(COMMAND gzip -9n ${changelog} COMMAND_ERROR_IS_FATAL ANY)
endforeach()
