/* log.h - lines on stderr, level by TORCH_TPU_LOG. Nothing else in the core writes to a stream. */
#ifndef TPU_BASE_LOG_H
#define TPU_BASE_LOG_H
typedef enum { LOG_ERROR = 1, LOG_WARN, LOG_INFO, LOG_DEBUG } log_level;
void log_line(log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
int log_on(log_level level);
#endif
