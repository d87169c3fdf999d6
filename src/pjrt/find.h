/* find.h - pjrt_find with the sysfs folder as a parameter, for tests. */
#ifndef TPU_PJRT_FIND_H
#define TPU_PJRT_FIND_H
void pjrt_find_in(const char *sysfs_root, const char *candidates, const char **out_path, const char **out_why);
#endif
