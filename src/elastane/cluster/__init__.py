"""Many jobs on one cluster: each is an elastic run, and one controller divides the devices among them.

`scheduler` decides, `controller` keeps the jobs and acts, `engines` start and observe the runs, and `client`
speaks to a controller.
"""
