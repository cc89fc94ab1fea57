# SPDX-License-Identifier: Apache-2.0
# The version of packages. apt tells packages of one version apart by nothing that a build need change, so each commit has a
# version of its own, and the one of a later commit is newer:
#
#   0.1.0+20261130220418.g02140da5                      of a commit: its time (UTC) and name
#   0.1.0+20261130220418.g02140da5+dirty20261201090000  with files that are not committed: the time of the build, too
#   0.1.0+20261130220418                                without git: the time of the newest file, or $SOURCE_DATE_EPOCH
#
# CPack reads this before it packs (CPACK_PROJECT_CONFIG_FILE), since a commit makes nothing configure again. The version is
# that of packages, of the package that services depend on, and of the changelog. `cmake -P` prints it.

# Sets `version` to `base` with what tells builds of it apart, and `date` to its time as a changelog has it.
function(lockstep_package_version base sources version date)
  set(commit "")
  set(dirty "")
  set(epoch "$ENV{SOURCE_DATE_EPOCH}")
  if(EXISTS ${sources}/.git)
    # Who packs trusts the sources, whoever's they are, and leaves nothing of its own in their .git.
    set(git git -c "safe.directory=*" --no-optional-locks -C ${sources})
    execute_process(COMMAND ${git} log -1 --format=%ct.%h --abbrev=8 HEAD
                    OUTPUT_VARIABLE head OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    if(head MATCHES "^([0-9]+)\\.([0-9a-f]+)$")
      set(epoch ${CMAKE_MATCH_1})
      set(commit .g${CMAKE_MATCH_2})
      execute_process(COMMAND ${git} status --porcelain OUTPUT_VARIABLE changed ERROR_QUIET)
      if(changed)
        string(TIMESTAMP now "%Y%m%d%H%M%S" UTC)
        set(dirty +dirty${now})
      endif()
    else()
      message(NOTICE "git says nothing of the commit in ${sources}: the version is of a time alone")
    endif()
  endif()
  if(epoch STREQUAL "")
    execute_process(COMMAND find ${sources} -mindepth 1 "(" -name .git -o -name build -o -name runs -o -name .cache -o -name __pycache__ ")"
                            -prune -o -type f -printf "%T@\\n"
                    COMMAND sort -n COMMAND tail -n 1 OUTPUT_VARIABLE epoch OUTPUT_STRIP_TRAILING_WHITESPACE)
  endif()
  execute_process(COMMAND date --utc --date=@${epoch} +%Y%m%d%H%M%S
                  OUTPUT_VARIABLE time OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  execute_process(COMMAND date --utc --date=@${epoch} --rfc-email
                  OUTPUT_VARIABLE day OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  set(${version} ${base}+${time}${commit}${dirty} PARENT_SCOPE)
  set(${date} ${day} PARENT_SCOPE)
endfunction()

lockstep_package_version(${CPACK_PACKAGE_VERSION} ${CPACK_LOCKSTEP_SOURCES} CPACK_PACKAGE_VERSION CPACK_LOCKSTEP_DATE)
if(CMAKE_SCRIPT_MODE_FILE STREQUAL CMAKE_CURRENT_LIST_FILE)
  execute_process(COMMAND ${CMAKE_COMMAND} -E echo ${CPACK_PACKAGE_VERSION})
  return()
endif()
foreach(service COORDINATOR AGENT)
  set(CPACK_DEBIAN_LOCKSTEP-${service}_PACKAGE_DEPENDS "lockstep (= ${CPACK_PACKAGE_VERSION}), adduser")
endforeach()
