# Installing, and Debian packages by CPack: `cmake --install build/release` and `./dev package`.
#
#   lockstep              the three programs, in lib/lockstep beside each other, with launcher and coordinator on
#                         PATH; lockstep-slurm; examples
#   lockstep-coordinator  the coordinator as a service: unit, user, state folder
#   lockstep-agent        the same for the agent
#
# Each commit's packages have a version of their own (PackageVersion.cmake).
if(LOCKSTEP_SANITIZE)
  return()
endif()
set(CMAKE_INSTALL_DEFAULT_COMPONENT_NAME lockstep)
if(CMAKE_INSTALL_PREFIX_INITIALIZED_TO_DEFAULT)
  set_property(CACHE CMAKE_INSTALL_PREFIX PROPERTY VALUE /usr)
endif()
set(LOCKSTEP_UNIT_DIR /lib/systemd/system CACHE PATH "Where units of systemd are installed")
set(deploy ${CMAKE_SOURCE_DIR}/deploy)
set(made ${CMAKE_BINARY_DIR}/packages)
file(MAKE_DIRECTORY ${made})

# lockstep_install_folders(COMPONENT FOLDERS [EXCLUDE_FROM_ALL]): what the component's files are installed in; before them.
function(lockstep_install_folders component folders)
  install(CODE "set(folders \"${folders}\")\ninclude(\"${CMAKE_SOURCE_DIR}/cmake/InstallFolders.cmake\")" COMPONENT ${component} ${ARGN})
endfunction()
lockstep_install_folders(lockstep "bin;lib/lockstep;share/doc/lockstep/examples;share/man/man1;share/man/man8")

install(TARGETS lockstep_bin_launcher lockstep_bin_worker lockstep_bin_coordinator
        RUNTIME DESTINATION lib/lockstep COMPONENT lockstep)
if(TARGET lockstep_cuda_module)  # found beside the worker
  install(PROGRAMS ${CMAKE_RUNTIME_OUTPUT_DIRECTORY}/liblockstep_cuda.so DESTINATION lib/lockstep COMPONENT lockstep
          OPTIONAL)
endif()
foreach(program launcher coordinator)
  file(CREATE_LINK ../lib/lockstep/${program} ${made}/${program} SYMBOLIC)
  install(FILES ${made}/${program} DESTINATION bin COMPONENT lockstep)
endforeach()
install(PROGRAMS ${deploy}/slurm/lockstep-slurm DESTINATION bin COMPONENT lockstep)
file(GLOB examples ${CMAKE_SOURCE_DIR}/examples/*.yaml)
install(FILES ${examples} DESTINATION share/doc/lockstep/examples COMPONENT lockstep)

# What Debian asks of each package. Pages are compressed without a time stamp, so that the same sources make the same files.
find_program(LOCKSTEP_GZIP gzip)
function(lockstep_compressed source target)
  if(LOCKSTEP_GZIP)
    execute_process(COMMAND ${LOCKSTEP_GZIP} -9nc ${source} OUTPUT_FILE ${target} COMMAND_ERROR_IS_FATAL ANY)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${source})
  endif()
endfunction()
foreach(page launcher.1 lockstep-slurm.1 coordinator.8)
  string(REGEX MATCH "[18]$" section ${page})
  lockstep_compressed(${deploy}/debian/${page} ${made}/${page}.gz)
  install(FILES ${made}/${page}.gz DESTINATION share/man/man${section} COMPONENT lockstep OPTIONAL)
endforeach()
install(FILES ${deploy}/debian/copyright DESTINATION share/doc/lockstep COMPONENT lockstep)

# lockstep_service(NAME lockstep-agent USER .. GECOS .. STATE /var/lib/.. [ALSO_PURGED ..] STOP_SIGNAL ..)
function(lockstep_service)
  cmake_parse_arguments(ARG "" "NAME;USER;GECOS;STATE;ALSO_PURGED;STOP_SIGNAL" "" ${ARGN})
  foreach(word USER GECOS STATE ALSO_PURGED STOP_SIGNAL)
    set(${word} "${ARG_${word}}")
  endforeach()
  set(UNIT ${ARG_NAME}.service)
  foreach(script postinst prerm postrm)
    configure_file(${deploy}/debian/${script}.in ${made}/${ARG_NAME}/${script} @ONLY FILE_PERMISSIONS
                   OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
  endforeach()
  file(WRITE ${made}/${ARG_NAME}/conffiles "/etc/default/${ARG_NAME}\n")
  lockstep_install_folders(${ARG_NAME} "/etc/default;${LOCKSTEP_UNIT_DIR};share/doc/${ARG_NAME}" EXCLUDE_FROM_ALL)
  install(FILES ${deploy}/systemd/${UNIT} DESTINATION ${LOCKSTEP_UNIT_DIR} COMPONENT ${ARG_NAME}
          EXCLUDE_FROM_ALL)  # outside the prefix, so by its name alone
  # The administrator's, once it is there.
  install(CODE "
    if(NOT EXISTS \"\$ENV{DESTDIR}/etc/default/${ARG_NAME}\")
      file(INSTALL DESTINATION /etc/default TYPE FILE RENAME ${ARG_NAME} FILES \"${deploy}/systemd/${ARG_NAME}.default\")
    endif()" COMPONENT ${ARG_NAME} EXCLUDE_FROM_ALL)
  install(FILES ${deploy}/debian/copyright DESTINATION share/doc/${ARG_NAME} COMPONENT ${ARG_NAME} EXCLUDE_FROM_ALL)
  string(TOUPPER ${ARG_NAME} upper)
  set(CPACK_DEBIAN_${upper}_PACKAGE_CONTROL_EXTRA
      ${made}/${ARG_NAME}/postinst ${made}/${ARG_NAME}/prerm ${made}/${ARG_NAME}/postrm
      ${made}/${ARG_NAME}/conffiles PARENT_SCOPE)
  set(CPACK_DEBIAN_${upper}_PACKAGE_ARCHITECTURE all PARENT_SCOPE)
  set(CPACK_DEBIAN_${upper}_PACKAGE_SHLIBDEPS OFF PARENT_SCOPE)
endfunction()
lockstep_service(NAME lockstep-coordinator USER lockstep GECOS "Lockstep coordinator" STATE /var/lib/lockstep
                 STOP_SIGNAL SIGTERM)
lockstep_service(NAME lockstep-agent USER lockstep-agent GECOS "Lockstep agent" STATE /var/lib/lockstep-agent
                 ALSO_PURGED /var/cache/lockstep-agent
                 STOP_SIGNAL SIGINT)

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME lockstep)
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PROJECT_CONFIG_FILE ${CMAKE_SOURCE_DIR}/cmake/PackageVersion.cmake)
set(CPACK_LOCKSTEP_SOURCES ${CMAKE_SOURCE_DIR})
set(CPACK_PACKAGE_DIRECTORY ${made})
set(CPACK_STRIP_FILES ON)
set(CPACK_PRE_BUILD_SCRIPTS ${CMAKE_SOURCE_DIR}/cmake/PackageFiles.cmake)
set(CPACK_POST_BUILD_SCRIPTS ${CMAKE_SOURCE_DIR}/cmake/InstalledSize.cmake)
set(CPACK_COMPONENTS_ALL lockstep lockstep-coordinator lockstep-agent)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_MAINTAINER "The Lockstep authors <lockstep@example.org>")
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_LOCKSTEP_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_LOCKSTEP_PACKAGE_NAME lockstep)
set(CPACK_DEBIAN_LOCKSTEP_PACKAGE_SUGGESTS dataset-fashion-mnist)
set(CPACK_DEBIAN_LOCKSTEP-COORDINATOR_PACKAGE_NAME lockstep-coordinator)
set(CPACK_DEBIAN_LOCKSTEP-AGENT_PACKAGE_NAME lockstep-agent)
set(CPACK_COMPONENT_LOCKSTEP_DESCRIPTION "distributed training runtime\nLockstep trains models data-parallel on one machine or a cluster, and heals\nwithout a change of a single bit of the result. This package has its programs:\nthe launcher, the worker and the coordinator.")
set(CPACK_COMPONENT_LOCKSTEP-COORDINATOR_DESCRIPTION "distributed training runtime (coordinator as a service)\nThe daemon that takes jobs, finds them nodes and keeps their workers together.\nInstalled on one machine of a cluster.")
set(CPACK_COMPONENT_LOCKSTEP-AGENT_DESCRIPTION "distributed training runtime (agent as a service)\nThe daemon that makes a machine a node of a cluster and runs the workers there.")
include(CPack)
