# `cmake --build --target package`: Debian packages of a build in build/packages, one per component
# of the install rules: rankd (daemon, rankctl, units, pages), librankd-driver with the number of
# its ABI, librankd-driver-dev.
# The maintainer is whoever builds the packages, named as for Debian's tools.
set(builder_name "rankd developers")
set(builder_mail "rankd@rankd.invalid")
if(DEFINED ENV{DEBFULLNAME})
    set(builder_name $ENV{DEBFULLNAME})
endif()
if(DEFINED ENV{DEBEMAIL})
    set(builder_mail $ENV{DEBEMAIL})
endif()
set(RK_PACKAGE_MAINTAINER "${builder_name} <${builder_mail}>" CACHE STRING
    "Maintainer of the Debian packages; default: DEBFULLNAME <DEBEMAIL> of the environment")
set(RK_PACKAGE_RELEASE "1" CACHE STRING "revision of the Debian packages, behind the version")
set(RK_PACKAGE_VERSION ${PROJECT_VERSION}-${RK_PACKAGE_RELEASE})

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME rankd)
set(CPACK_PACKAGE_VENDOR rankd)
set(CPACK_PACKAGE_DIRECTORY ${CMAKE_BINARY_DIR}/packages)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS
    OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
set(CPACK_COMPONENTS_ALL rankd driver dev)
set(CPACK_COMPONENTS_GROUPING IGNORE)
set(CPACK_DEB_COMPONENT_INSTALL ON)

set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_MAINTAINER ${RK_PACKAGE_MAINTAINER})
set(CPACK_DEBIAN_PACKAGE_RELEASE ${RK_PACKAGE_RELEASE})
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)

set(CPACK_DEBIAN_RANKD_PACKAGE_NAME rankd)
set(CPACK_DEBIAN_RANKD_PACKAGE_SECTION science)
set(CPACK_COMPONENT_RANKD_DESCRIPTION "daemons for reinforcement learning of language models
One daemon serves one device, a GPU or a share of a CPU, over gRPC: it
generates, scores and trains under the command of a driver. rankctl is that
driver. This package has both, the systemd units and the documentation.
Backends for GPUs are plug-ins that are installed beside it.")
set(CPACK_DEBIAN_RANKD_PACKAGE_SHLIBDEPS ON)
# systemd-sysusers creates the user.
set(CPACK_DEBIAN_RANKD_PACKAGE_DEPENDS "systemd | systemd-standalone-sysusers, passwd")
set(CPACK_DEBIAN_RANKD_PACKAGE_RECOMMENDS "python3")
set(debian ${CMAKE_SOURCE_DIR}/deploy/debian)
set(CPACK_DEBIAN_RANKD_PACKAGE_CONTROL_EXTRA
    ${debian}/postinst ${debian}/prerm ${debian}/postrm ${debian}/conffiles)

get_target_property(driver_abi rankd_driver SOVERSION)
set(driver_package librankd-driver${driver_abi})
set(CPACK_DEBIAN_DRIVER_PACKAGE_NAME ${driver_package})
set(CPACK_DEBIAN_DRIVER_PACKAGE_SECTION libs)
set(CPACK_COMPONENT_DRIVER_DESCRIPTION "driver library of rankd
The parts of rankctl that other programs link: librankd_driver connects to
rankd daemons, claims them, and calls their methods with batches; librankd_rl
has tokenizers, chat templates, data, rewards and advantages, too.")
set(CPACK_DEBIAN_DRIVER_PACKAGE_SHLIBDEPS ON)
# Dependency of packages whose programs link the library. Not cpack's own shlibs file: cpack would
# also call ldconfig directly instead of by a trigger.
file(WRITE ${CMAKE_BINARY_DIR}/generated/debian/shlibs 
    "librankd_driver ${driver_abi} ${driver_package} (>= ${PROJECT_VERSION})
librankd_rl ${driver_abi} ${driver_package} (>= ${PROJECT_VERSION})\n")
set(CPACK_DEBIAN_DRIVER_PACKAGE_CONTROL_EXTRA ${CMAKE_BINARY_DIR}/generated/debian/shlibs ${debian}/triggers)

set(CPACK_DEBIAN_DEV_PACKAGE_NAME librankd-driver-dev)
set(CPACK_DEBIAN_DEV_PACKAGE_SECTION libdevel)
set(CPACK_COMPONENT_DEV_DESCRIPTION "headers of the driver library of rankd
What a C or C++ program that drives rankd daemons is built with.")
set(CPACK_DEBIAN_DEV_PACKAGE_DEPENDS "${driver_package} (= ${RK_PACKAGE_VERSION})")

# Adds the files that only a package has, and removes those that a package must not have.
set(CPACK_PRE_BUILD_SCRIPTS ${CMAKE_SOURCE_DIR}/cmake/PackageFiles.cmake)
set(CPACK_RK_DEBIAN_DIR ${debian})
set(CPACK_RK_PACKAGE_VERSION ${RK_PACKAGE_VERSION})
set(CPACK_RK_PACKAGE_MAINTAINER ${RK_PACKAGE_MAINTAINER})
set(CPACK_RK_SOURCE_DIR ${CMAKE_SOURCE_DIR})
set(CPACK_RK_MULTIARCH ${CMAKE_LIBRARY_ARCHITECTURE})
include(CPack)
