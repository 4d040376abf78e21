# Run at build time: writes OUT, the bytes of FILE as elements of a C array, to be included between
# braces.
#   cmake -DFILE=... -DOUT=... -P EmbedFile.cmake
file(READ ${FILE} bytes HEX)
string(REGEX REPLACE "(................................)" "\\1\n" bytes "${bytes}")
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")
file(WRITE ${OUT} "${bytes}\n")
