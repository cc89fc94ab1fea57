# SPDX-License-Identifier: Apache-2.0
# After cpack has made the packages: writes what they take when installed into their Installed-Size, where
# CPack counts what a symbolic link points to once more. Takes tar and ar, which building has anyway.
foreach(package ${CPACK_PACKAGE_FILES})
  set(work ${CPACK_TEMPORARY_DIRECTORY}/installed-size)
  file(REMOVE_RECURSE ${work})
  file(MAKE_DIRECTORY ${work}/control)
  execute_process(COMMAND sh -euc [=[
      package=$1 work=$2
      cd "$work"
      ar x "$package" control.tar.gz data.tar.gz
      # As Debian counts: each file in KiB, rounded up, and one KiB for whatever else there is.
      size=$(tar -tvzf data.tar.gz | awk '/^-/ { kib += int(($3 + 1023) / 1024); next } { ++kib } END { print kib }')
      tar -p -xzf control.tar.gz -C control  # with its modes, whatever the umask and the user
      sed -i "s/^Installed-Size:.*/Installed-Size: $size/" control/control
      (cd control && tar --owner=root:0 --group=root:0 --format=ustar -cf - $(tar -tzf ../control.tar.gz)) |
        gzip -9n >new.tar.gz
      mv new.tar.gz control.tar.gz
      ar r "$package" control.tar.gz
    ]=] sh ${package} ${work} COMMAND_ERROR_IS_FATAL ANY)
endforeach()
